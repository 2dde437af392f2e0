-- purge_dead: deletes dead letters that died longer than `keep` ago, the oldest first, at most `step`. Returns how
-- many.
--
-- Called by purge_old_dead.sql, of a worker's sweep; a person's purge is purge_dead.sql.
-- SECURITY DEFINER: a worker may not delete dead letters; this deletes none that is younger than an hour
-- (tenure.check_age).
-- SKIP LOCKED: a redrive may be about to bring one back. Its unique key gets the time of its end, from which purge_keys
-- counts; its other traces go with purge_traces. After a lost answer the sweep goes on.
CREATE OR REPLACE FUNCTION tenure.purge_dead(keep interval, step int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    job_count bigint;
BEGIN
    WITH purged AS (
        DELETE FROM tenure.dead_letter_jobs
         WHERE id IN (SELECT id FROM tenure.dead_letter_jobs
                       WHERE died_at < statement_timestamp() - tenure.check_age(keep)
                       ORDER BY died_at LIMIT step FOR UPDATE SKIP LOCKED)
        RETURNING id, died_at
    ), ended AS (
        UPDATE tenure.job_keys k SET ended_at = p.died_at FROM purged p WHERE k.job_id = p.id
    )
    SELECT count(*) INTO job_count FROM purged;
    RETURN job_count;
END $$;

REVOKE ALL ON FUNCTION tenure.purge_dead(interval, int) FROM PUBLIC;
