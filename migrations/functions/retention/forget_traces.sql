-- forget_traces: deletes the attempts, effects, tags and logs of a job that is gone. While the job stands anywhere, it
-- deletes nothing.
--
-- Called by the statements that complete jobs of kinds without history (complete_forget.sql) and by tenure.complete,
-- after they have deleted the job's row.
-- SECURITY DEFINER: a worker may not delete what has happened.
-- VOLATILE: in one statement with that DELETE, each of its own statements sees what the DELETE has done. A rollback
-- takes both back. A job that two callers name is forgotten once.
CREATE OR REPLACE FUNCTION tenure.forget_traces(job uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM tenure.jobs j WHERE j.id = job)
       OR EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = job)
       OR EXISTS (SELECT FROM tenure.job_history h WHERE h.id = job)
    THEN
        RETURN;
    END IF;
    DELETE FROM tenure.job_executions e WHERE e.job_id = job;
    DELETE FROM tenure.effects e WHERE e.job_id = job;
    DELETE FROM tenure.job_tags t WHERE t.job_id = job;
    DELETE FROM tenure.job_logs l WHERE l.job_id = job;
END $$;

REVOKE ALL ON FUNCTION tenure.forget_traces(uuid) FROM PUBLIC;
