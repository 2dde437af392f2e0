-- Takes hold of jobs that stood in a queue before it had lanes: a published or running one gets a slot, one that
-- waits for its time is held. Returns how many, at most `most` of each; 0: none is left.
--
-- The library calls it after `put_lanes` until it returns 0 (src/lanes/sql/adopt_jobs.sql).
-- SECURITY DEFINER: the person on call changes neither slots nor jobs.
-- Two calls at once, or one whose answer was lost, adopt each job once: a slot and a place that are there stay. A job
-- that a worker claims meanwhile has a slot, or gets one with the next call.
CREATE OR REPLACE FUNCTION tenure.adopt_jobs(of text, most int) RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
    SET lock_timeout = '300ms' AS $$
#variable_conflict use_column
DECLARE
    found_jobs int;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT j.id, j.lane, j.fencing_token
          FROM tenure.jobs j
         WHERE j.queue = adopt_jobs.of AND (j.status = 'processing' OR j.publish_at IS NULL)
           AND NOT EXISTS (SELECT FROM tenure.lane_slots sl
                            WHERE sl.queue = adopt_jobs.of AND sl.lane = coalesce(j.lane, '') AND sl.job_id = j.id)
         LIMIT most
    ), slots AS (
        INSERT INTO tenure.lane_slots (queue, lane, job_id, fencing_token)
        SELECT adopt_jobs.of, coalesce(lane, ''), id, fencing_token FROM old
            ON CONFLICT DO NOTHING
        RETURNING 1
    ), waiting AS MATERIALIZED (
        SELECT j.id, j.lane, j.priority, j.publish_at
          FROM tenure.jobs j
         WHERE j.queue = adopt_jobs.of AND j.status = 'queued' AND j.publish_at < '9999-01-01 00:00:00+00'
           AND NOT EXISTS (SELECT FROM tenure.lane_slots sl
                            WHERE sl.queue = adopt_jobs.of AND sl.lane = coalesce(j.lane, '') AND sl.job_id = j.id)
         LIMIT most
           FOR NO KEY UPDATE
    ), lined AS (
        INSERT INTO tenure.lane_jobs (job_id, queue, lane, priority, place, due_at)
        SELECT w.id, adopt_jobs.of, coalesce(w.lane, ''), CASE WHEN o.ordered THEN 0 ELSE coalesce(w.priority, 0) END,
               CASE WHEN o.ordered THEN 0 END, w.publish_at
          FROM waiting w, tenure.lane_settings o
         WHERE o.queue = adopt_jobs.of
         ORDER BY w.publish_at, w.id
            ON CONFLICT DO NOTHING
    ), woken AS (
        INSERT INTO tenure.lane_wakes (at, queue, lane, job_id)
        SELECT greatest(publish_at, clock_timestamp()), adopt_jobs.of, coalesce(lane, ''), id FROM waiting
    ), named AS (
        UPDATE tenure.jobs j
           SET lane = coalesce(j.lane, ''), priority = coalesce(j.priority, 0),
               scheduled_at = '9999-01-01 00:00:00+00', publish_at = '9999-01-01 00:00:00+00'
         WHERE j.id = ANY (ARRAY(SELECT id FROM waiting))
        RETURNING 1
    ), all_of AS (
        SELECT 1 FROM slots UNION ALL SELECT 1 FROM named
    )
    SELECT count(*) INTO found_jobs FROM all_of;
    RETURN found_jobs;
END $$;

REVOKE ALL ON FUNCTION tenure.adopt_jobs(text, int) FROM PUBLIC;
