-- Releases the held jobs of these followers, and returns them. One of a lane goes into its lane instead.
--
--   cancelled: as `judge_followers` says
--
-- Part of `release_followers`, with its rights and settings. The UPDATE finds a job held once, however many calls find
-- it ready. It waits 100 ms for jobs that are locked, then has them noted anew and releases the others. One without a
-- row that is held has gone already; or another call has just cancelled it; or it has died, and its redrive may be
-- about to hold it: that locks the follower until it commits. So those that are left are tried once more behind the
-- locks of `lock_followers`.
CREATE OR REPLACE FUNCTION tenure.release_held_jobs(followers uuid[], cancelled uuid[])
RETURNS TABLE (id uuid, queue text, kind text, dispatch int, clear_reason text, trace_context text)
LANGUAGE plpgsql VOLATILE SET lock_timeout = '100ms' AS $$
DECLARE
    never  CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    moment CONSTANT timestamptz := clock_timestamp();
    ready  uuid[] := followers;
    n_of_released bigint;
BEGIN
    FOR try IN 1..2 LOOP
        IF try = 2 THEN
            ready := tenure.lock_followers(ready, cancelled);
        END IF;
        ready := tenure.release_into_lanes(ready);
        LOOP
            BEGIN
                -- The time that never comes is compared so that no plan goes through all jobs that have it. Sorted:
                -- what is returned stays, also if a lock ends the statement, and a sort returns nothing before the last
                -- row is changed.
                RETURN QUERY WITH released AS (
                    UPDATE tenure.jobs j
                       SET dispatch = j.dispatch + 1, scheduled_at = moment, publish_at = NULL,
                           published_at = clock_timestamp()
                     WHERE j.id = ANY (ready) AND j.status = 'queued' AND (j.publish_at = never) IS TRUE
                       AND (SELECT true FROM tenure.lane_jobs l WHERE l.job_id = j.id) IS NULL
                    RETURNING j.id, j.queue, j.kind, j.dispatch, j.clear_reason, j.trace_context
                )
                SELECT r.* FROM released r ORDER BY r.id;
                GET DIAGNOSTICS n_of_released = ROW_COUNT;
                EXIT;
            EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
                ready := tenure.defer_locked_jobs(ready);
            END;
        END LOOP;
        EXIT WHEN try = 2 OR cardinality(ready) <= n_of_released;
        -- Those that this call has released are due at its moment.
        ready := ARRAY(SELECT DISTINCT r.id FROM unnest(ready) AS r(id)
                        WHERE NOT EXISTS (SELECT FROM tenure.jobs j
                                           WHERE j.id = r.id AND j.publish_at IS NULL AND j.scheduled_at = moment));
    END LOOP;
END $$;

REVOKE ALL ON FUNCTION tenure.release_held_jobs(uuid[], uuid[]) FROM PUBLIC;
