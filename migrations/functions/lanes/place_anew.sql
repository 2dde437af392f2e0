-- Gives all held jobs of a queue their places anew, and a wake to each that is not due yet: an ordered lane has one
-- place for all of its jobs, which then go as they came; else a job has a place once it is due, by priority and time.
--
-- Called by `put_lanes` and `remove_lanes`, with their rights; they have locked the table of lanes, so that no job is
-- released meanwhile. A job that is due at no time has no place.
CREATE OR REPLACE FUNCTION tenure.place_anew(of text, ordered boolean) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    WITH moved AS (
        UPDATE tenure.lane_jobs l
           SET place = CASE WHEN place_anew.ordered THEN 0
                            WHEN l.due_at <= clock_timestamp()
                            THEN (extract(epoch FROM l.due_at) * 1000000)::bigint END,
               priority = CASE WHEN place_anew.ordered THEN 0
                               ELSE coalesce((SELECT j.priority FROM tenure.jobs j WHERE j.id = l.job_id), 0) END
         WHERE l.queue = place_anew.of AND l.due_at < '9999-01-01 00:00:00+00'
        RETURNING l.job_id, l.queue, l.lane, l.place, l.due_at
    )
    INSERT INTO tenure.lane_wakes (at, queue, lane, job_id)
    SELECT greatest(due_at, clock_timestamp()), queue, lane, job_id FROM moved WHERE place IS NULL
$$;

REVOKE ALL ON FUNCTION tenure.place_anew(text, boolean) FROM PUBLIC;
