-- cancel: cancels a queued job, or asks the worker of a running one to cancel it: cancel.sql, for one job, by SQL.
--
-- Called by users (docs/sql.md), with their rights: postgres/roles.sql grants it to operators.
-- Two at once wait for the job's row. The second finds the job asked already, and notes no second act; or it finds no
-- row, and answers `finished`. A lost answer: call again; `finished` may then be this call's own cancellation.
CREATE OR REPLACE FUNCTION tenure.cancel(job uuid) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    live_job tenure.jobs;
BEGIN
    -- Again, if it is redriven in between.
    FOR try IN 1..5 LOOP
        -- As cancel.sql: a handler's repeatable-read transaction protects its row from a reset, but not from this.
        SELECT j.* INTO live_job FROM tenure.jobs j WHERE j.id = cancel.job FOR NO KEY UPDATE;
        IF live_job.status = 'processing' THEN
            UPDATE tenure.jobs j
               SET cancel_requested_at = coalesce(j.cancel_requested_at, clock_timestamp())
             WHERE j.id = cancel.job;
            INSERT INTO tenure.audit (via, act, queue, subject, jobs)
            SELECT 'sql', 'cancel', live_job.queue, cancel.job::text, 1 WHERE live_job.cancel_requested_at IS NULL;
            -- The row stays locked until the commit.
            PERFORM tenure.limit_idle(greatest(interval '1 second', live_job.stale_after / 4));
            RETURN 'asked';
        ELSIF live_job.status = 'queued' THEN
            PERFORM tenure.end_queued(cancel.job);
            INSERT INTO tenure.audit (via, act, queue, subject, jobs)
            VALUES ('sql', 'cancel', live_job.queue, cancel.job::text, 1);
            RETURN 'cancelled';
        ELSIF EXISTS (SELECT FROM tenure.job_history h WHERE h.id = cancel.job)
           OR EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = cancel.job) THEN
            -- A follower that a failure has cancelled stays so, also if what has failed is redriven.
            INSERT INTO tenure.audit (via, act, queue, subject, jobs)
            SELECT 'sql', 'cancel', (SELECT h.queue FROM tenure.job_history h WHERE h.id = k.id), k.id::text, 1
              FROM tenure.keep_cancelled(ARRAY[cancel.job]) AS k (id);
            -- That call may have waited for one that has brought the follower back.
            CONTINUE WHEN EXISTS (SELECT FROM tenure.jobs j WHERE j.id = cancel.job);
            RETURN 'finished';
        END IF;
        EXIT WHEN NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = cancel.job);
    END LOOP;
    RETURN 'not_found';
END $$;

REVOKE ALL ON FUNCTION tenure.cancel(uuid) FROM PUBLIC;

COMMENT ON FUNCTION tenure.cancel(uuid) IS
'Cancels a job. Returns cancelled (it was queued), asked (it runs; its worker stops it within five seconds of the
commit, unless it completes first), finished (it had ended before) or not_found. Safe to repeat.
After asked, the transaction may sit idle for a quarter of the job''s stale_after.';
