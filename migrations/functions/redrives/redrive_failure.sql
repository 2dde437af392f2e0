-- Says why a redrive stops: which share of its latest jobs have failed, at most the last hundred, or the canary if
-- that is larger. NULL: fewer than `stop_at`. As long as few have ended, the whole canary counts.
--
-- Called by `tend_redrive` alone, with its rights and its settings; it only reads.
CREATE OR REPLACE FUNCTION tenure.redrive_failure(of uuid, canary_jobs bigint, stop_at float8) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    latest_jobs bigint;
    failed_jobs bigint;
BEGIN
    SELECT greatest(count(*), canary_jobs), count(*) FILTER (WHERE l.outcome = 'failed') INTO latest_jobs, failed_jobs
      FROM (SELECT o.outcome FROM tenure.redrive_jobs o
             WHERE o.redrive_id = of AND o.ended_at IS NOT NULL AND o.outcome <> 'waiting'
             ORDER BY o.ended_at DESC LIMIT greatest(canary_jobs, 100)) l;
    IF failed_jobs > 0 AND failed_jobs >= stop_at * latest_jobs THEN
        RETURN format('%s of the latest %s jobs failed', failed_jobs, latest_jobs);
    END IF;
    RETURN NULL;
END $$;

REVOKE ALL ON FUNCTION tenure.redrive_failure(uuid, bigint, float8) FROM PUBLIC;
