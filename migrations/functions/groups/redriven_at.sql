-- Returns when a redriven job is due: now, or never if it had not started (its token is 0) and waits for jobs that may
-- still come. A failed job may come, unless the follower runs in any case.
--
-- `redrive` calls it after `reopen_edges`, which has locked the row of the follower: a call of `release_followers` that
-- is about to cancel it makes way, and one that is to release it looks once more after the redrive's commit.
-- SECURITY DEFINER: who may redrive a job need not be able to read what it waits for.
CREATE OR REPLACE FUNCTION tenure.redriven_at(job uuid, token bigint) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF token = 0 AND EXISTS (
           SELECT FROM tenure.job_edges d JOIN tenure.followers f ON f.job_id = d.after
            WHERE d.after = job AND d.step IS NULL
              AND (d.state IS NULL OR d.state = 'failed' AND f.on_failure <> 'run')) THEN
        RETURN '9999-01-01 00:00:00+00';
    END IF;
    RETURN clock_timestamp();
END $$;

REVOKE ALL ON FUNCTION tenure.redriven_at(uuid, bigint) FROM PUBLIC;
