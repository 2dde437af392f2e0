-- purge_cancelled: deletes cancelled jobs that ended longer than `keep` ago, the oldest first, at most `step`. Returns
-- how many.
--
-- Called by purge_cancelled.sql, of a worker's sweep.
-- SECURITY DEFINER: a worker may not delete what has happened; this deletes nothing younger than an hour
-- (tenure.check_age).
-- The unique key of a job that ran long outlives it, and gets the time of its end, from which purge_keys counts.
-- Two at once delete each row once. After a lost answer the sweep goes on: what is gone is not found again.
CREATE OR REPLACE FUNCTION tenure.purge_cancelled(keep interval, step int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    job_count bigint;
BEGIN
    WITH purged AS (
        DELETE FROM tenure.job_history
         WHERE id IN (SELECT id FROM tenure.job_history
                       WHERE status = 'cancelled' AND finished_at < statement_timestamp() - tenure.check_age(keep)
                       ORDER BY finished_at LIMIT step)
           AND status = 'cancelled'
        RETURNING id, created_at, finished_at
    ), ended AS (
        UPDATE tenure.job_keys k SET ended_at = p.finished_at FROM purged p
         WHERE k.job_id = p.id AND p.finished_at > p.created_at + interval '1 hour'
    )
    SELECT count(*) INTO job_count FROM purged;
    RETURN job_count;
END $$;

REVOKE ALL ON FUNCTION tenure.purge_cancelled(interval, int) FROM PUBLIC;
