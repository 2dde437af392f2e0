-- Looks after lanes: those that a commit has woken, whose time has come, whose slots are free although no worker said
-- so, and all whose turn it is. Returns the released jobs. A row without an id names a queue whose lanes could not be
-- looked after, with the reason as `clear_reason`, or, without a queue, says that there are more to do.
--
--   most: how many jobs to release of each queue   judge: whether to look for slots of jobs that ended unseen, in a
--   part of the table: see `lost_slots`
--
-- The relay calls it at each of its looks (src/lanes/sql/tend_lanes.sql), and publishes the jobs.
-- SECURITY DEFINER: a worker may not change lanes.
-- Two calls at once pass over the lanes that the other has, and a call takes some lanes, so that no other call waits
-- for it for long. If the answer is lost, the relay finds that the messages are missing. A queue's trouble is its own:
-- the others are looked after in the same call, in any order, for at most some three seconds.
CREATE OR REPLACE FUNCTION tenure.tend_lanes(most int, judge boolean)
RETURNS TABLE (id uuid, queue text, kind text, dispatch int, clear_reason text, trace_context text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    moment        CONSTANT timestamptz := clock_timestamp();
    lanes_at_once CONSTANT int := 200;
    lanes_of_each CONSTANT int := 20;
    wakes_from    CONSTANT timestamptz := tenure.look_from('lane_wakes');
    woken_queues  text[];
    woken_lanes   text[];
    has_more      boolean;
    released      bigint;
    of            record;
BEGIN
    PERFORM tenure.place_due_jobs(moment);
    SELECT array_agg(w.queue), array_agg(w.lane), count(*) = lanes_at_once INTO woken_queues, woken_lanes, has_more
      FROM (SELECT *
              FROM (SELECT DISTINCT queue, lane
                      FROM (SELECT w.queue, w.lane FROM tenure.lane_wakes w
                             WHERE w.at BETWEEN wakes_from AND moment AND w.job_id IS NULL
                             ORDER BY w.at, w.id LIMIT 2000) w) w
             ORDER BY random() LIMIT lanes_at_once) w;
    FOR of IN
        WITH due (queue, lane) AS MATERIALIZED (
            SELECT queue, lane FROM tenure.lanes WHERE next_at <= moment ORDER BY next_at LIMIT lanes_at_once
        ), looks (queue, lane) AS (
            SELECT * FROM unnest(woken_queues, woken_lanes)
             UNION
            SELECT * FROM due
             UNION
            -- A queue whose lanes cannot be looked after keeps its wakes and times: the others have a few each.
            SELECT s.queue, k.lane FROM tenure.lane_settings s
             CROSS JOIN LATERAL (SELECT w.lane FROM tenure.lane_wakes w
                                  WHERE w.queue = s.queue AND w.job_id IS NULL AND w.at <= moment
                                  LIMIT lanes_of_each) k
             WHERE has_more
             UNION
            SELECT s.queue, k.lane FROM tenure.lane_settings s
             CROSS JOIN LATERAL (SELECT l.lane FROM tenure.lanes l
                                  WHERE l.queue = s.queue AND l.next_at <= moment
                                  LIMIT lanes_of_each) k
             WHERE (SELECT count(*) FROM due) = lanes_at_once
             UNION
            (SELECT k.queue, k.lane FROM tenure.lost_slots(moment, lanes_at_once) k WHERE judge)
        )
        SELECT n.queue, (SELECT array_agg(k.lane ORDER BY k.lane) FROM looks k WHERE k.queue = n.queue) AS lanes
          FROM (SELECT queue FROM looks
                 UNION
                SELECT queue FROM tenure.lane_settings s
                 WHERE EXISTS (SELECT FROM tenure.lanes l WHERE l.queue = s.queue AND l.turn IS NOT NULL)) n
         ORDER BY random()
    LOOP
        BEGIN
            RETURN QUERY SELECT * FROM tenure.admit(of.queue, of.lanes, NULL, most);
            GET DIAGNOSTICS released = ROW_COUNT;
            has_more := has_more OR released >= most;
        EXCEPTION WHEN OTHERS THEN
            RETURN QUERY SELECT NULL::uuid, of.queue, NULL::text, NULL::int, SQLERRM, NULL::text;
            PERFORM tenure.pass_over_lanes(of.queue, of.lanes, moment);
        END;
        IF clock_timestamp() > moment + interval '3 seconds' THEN
            has_more := true;
            EXIT;
        END IF;
    END LOOP;
    IF has_more THEN
        RETURN QUERY SELECT NULL::uuid, NULL::text, NULL::text, NULL::int, NULL::text, NULL::text;
    END IF;
END $$;

REVOKE ALL ON FUNCTION tenure.tend_lanes(int, boolean) FROM PUBLIC;
