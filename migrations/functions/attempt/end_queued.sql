-- Ends a queued job as cancelled: its row goes, and its lane is told.
--
--   job: its id; the caller has locked the row
--
-- `cancel` calls it for an act of a person, which it audits, with that person's rights; `cancel_followers` for what a
-- failure cancels, which is no act, as the schema's owner.
CREATE OR REPLACE FUNCTION tenure.end_queued(job uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    ended tenure.jobs;
BEGIN
    SELECT j.* INTO ended FROM tenure.jobs j WHERE j.id = end_queued.job;
    IF ended.lane IS NOT NULL THEN
        DELETE FROM tenure.lane_jobs l WHERE l.job_id = ended.id;
        -- Its slot, or its place at the head of an ordered lane.
        INSERT INTO tenure.lane_wakes (at, queue, lane)
        VALUES (clock_timestamp(), ended.queue, ended.lane);
    END IF;
    -- Before the row goes: the trigger of groups may fire at once, and reads what has become of the job.
    INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
           claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at,
           stage, progress, message, trace_context, last_error)
    VALUES (ended.id, ended.queue, ended.kind, ended.payload, 'cancelled', ended.attempt,
            ended.max_attempts, ended.fencing_token, ended.claim_id, ended.worker_id,
            ended.created_at, least(ended.scheduled_at, clock_timestamp()), ended.started_at,
            ended.last_activity_at, clock_timestamp(), ended.stage, ended.progress, ended.message,
            ended.trace_context, ended.last_error);
    DELETE FROM tenure.jobs j WHERE j.id = ended.id;
END $$;

REVOKE ALL ON FUNCTION tenure.end_queued(uuid) FROM PUBLIC;
