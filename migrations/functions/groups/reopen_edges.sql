-- Opens the edges of jobs that are redriven: what follows them waits for their next end. Returns how many edges that
-- were.
--
-- `redrive` calls it in the statement that makes the jobs live again.
-- SECURITY DEFINER: who may redrive a job need not be able to write edges.
-- It locks the followers of these jobs, and those of them that are followers, until the redrive commits: no call of
-- `release_followers` cancels or brings back one then, but one may release it, by what it has seen before. Two redrives
-- lock in the same order.
CREATE OR REPLACE FUNCTION tenure.reopen_edges(jobs uuid[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    n_of_opened bigint;
BEGIN
    PERFORM FROM tenure.followers f
      WHERE f.job_id = ANY (jobs || ARRAY(SELECT d.after FROM tenure.job_edges d WHERE d.before = ANY (jobs)))
      ORDER BY f.job_id FOR NO KEY UPDATE;
    UPDATE tenure.job_edges d SET state = NULL, ended_at = NULL WHERE d.before = ANY (jobs) AND d.state = 'failed';
    GET DIAGNOSTICS n_of_opened = ROW_COUNT;
    RETURN n_of_opened;
END $$;

REVOKE ALL ON FUNCTION tenure.reopen_edges(uuid[]) FROM PUBLIC;
