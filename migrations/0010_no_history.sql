-- Kinds that keep no history: the row of a job that completes is deleted.

-- Forgets the attempts and the effects of a job that is gone. It does no more than that: while the job stands anywhere,
-- it deletes nothing. Called in the statement that deleted the job's row, it finds no row: each of its statements sees
-- what that one has done.
-- SECURITY DEFINER: a worker may not delete what has happened.
CREATE FUNCTION tenure.forget_traces(job uuid) RETURNS void
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
END $$;
REVOKE ALL ON FUNCTION tenure.forget_traces(uuid) FROM PUBLIC;

-- The kinds of this worker that keep no history; '*': all that have no handler of their own. NULL: none, or an older
-- release.
ALTER TABLE tenure.workers ADD COLUMN unkept text[];

-- Of the completed jobs of this minute, those that left no row in the history: figures that are estimated from the
-- history leave them out.
ALTER TABLE tenure.activity ADD COLUMN unkept bigint NOT NULL DEFAULT 0;
