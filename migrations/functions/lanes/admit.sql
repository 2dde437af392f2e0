-- Releases held jobs of a queue: gives the lanes whose turn it is slots and tokens, and their first jobs a message
-- each, which the caller publishes. If the caller dies, or its answer is lost, the relay finds those messages
-- missing.
--
--   of: the queue   names: the lanes to look at first, because a job of theirs has ended or is new; sorted
--   ended: the jobs that ended; NULL: any job of these lanes may have   most: how many jobs to release
--
-- A worker calls it (src/lanes/sql/admit.sql) when jobs of lanes have ended, the library when it has enqueued laned
-- jobs, and `tend_lanes` with `ended` NULL.
-- SECURITY DEFINER: a producer may neither see nor change lanes, and may release what they allow. By it a producer
-- learns the ids, kinds and traces of what it releases.
-- Two calls at once: each statement sees what is committed when it begins. The slots are counted after the lanes'
-- rows are locked, and so two calls cannot both see the last free slot. A call waits for the lanes that it names: the
-- other call may not have seen what this one knows. Those in the line are passed over if another call has them; so
-- are named ones if `ended` is NULL: their wakes stay. At REPEATABLE READ a call ends with 40001 if the settings are
-- newer than its snapshot, and releases nothing of a queue that had no lanes then: `tend_lanes` does.
CREATE OR REPLACE FUNCTION tenure.admit(of text, names text[], ended uuid[], most int)
RETURNS TABLE (id uuid, queue text, kind text, dispatch int, clear_reason text, trace_context text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET plan_cache_mode = force_generic_plan SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    named   text[];
    moment  timestamptz;
    unused  bigint := 0;
    room    bigint;
    line    text[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM FROM tenure.lane_settings s WHERE s.queue = of FOR SHARE;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    named := tenure.lock_named_lanes(of, names, ended IS NOT NULL);
    moment := clock_timestamp();
    IF ended IS NULL AND cardinality(named) IS DISTINCT FROM cardinality(names) THEN
        PERFORM tenure.pass_over_lanes(of, ARRAY(SELECT unnest(names) EXCEPT SELECT unnest(named)), moment);
    END IF;
    IF named IS NULL THEN
        RETURN;
    END IF;
    IF named <> '{}' THEN
        -- This call sees the jobs of each wake that it sees.
        DELETE FROM tenure.lane_wakes w
         WHERE w.ctid = ANY (ARRAY(SELECT ctid FROM tenure.lane_wakes
                                    WHERE queue = of AND lane = ANY (named) AND job_id IS NULL
                                      FOR UPDATE SKIP LOCKED));
        -- A job that this transaction adds later needs a new one.
        PERFORM set_config('tenure.woken', '', true);
        IF ended IS NULL OR ended <> '{}' THEN
            unused := tenure.free_slots(of, named, ended);
        END IF;
    END IF;
    room := tenure.count_room(of, most, unused, moment);
    IF room = 0 AND named = '{}' THEN
        RETURN;
    END IF;
    -- Of the line, no more lanes than may release a job.
    SELECT named || coalesce(array_agg(l.lane) FILTER (WHERE l.lane <> ALL (named)), '{}') INTO line
      FROM (SELECT lane FROM tenure.lanes WHERE queue = of AND turn IS NOT NULL
             ORDER BY queue, turn LIMIT least(room, 1000) FOR NO KEY UPDATE SKIP LOCKED) l;
    RETURN QUERY SELECT * FROM tenure.release_jobs(of, line, room, moment);
END $$;

REVOKE ALL ON FUNCTION tenure.admit(text, text[], uuid[], int) FROM PUBLIC;
