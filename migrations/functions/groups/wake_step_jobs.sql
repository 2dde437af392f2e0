-- Wakes jobs of which a step has ended, and tells the attempts of those that run: an attempt may not have seen the end
-- of the last of its jobs. Its settle compares when they ended with when it began, and they ended before their end was
-- committed; so the last edge gets a new time.
--
--   steps: [job, step], of these jobs and of others
--
-- Part of `release_followers`, with its rights and settings, which has locked the rows of the jobs, as a settle does.
-- An edge that is locked is noted anew, and so is a job whose place in a lane is still locked after 100 ms.
CREATE OR REPLACE FUNCTION tenure.wake_step_jobs(woken uuid[], steps jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET lock_timeout = '100ms' AS $$
DECLARE
    running record;
BEGIN
    FOR running IN
        SELECT DISTINCT j.id AS job, w ->> 1 AS step
          FROM jsonb_array_elements(steps) AS w
          JOIN tenure.jobs j ON j.id = (w ->> 0)::uuid
         WHERE j.id = ANY (woken) AND j.status = 'processing'
    LOOP
        UPDATE tenure.job_edges d
           SET ended_at = clock_timestamp()
         WHERE d.ctid = (SELECT e.ctid FROM tenure.job_edges e
                          WHERE e.after = running.job AND e.step = running.step AND e.state IS NOT NULL
                          ORDER BY e.n DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED);
        IF NOT FOUND THEN
            INSERT INTO tenure.group_ends (job_id, ended_as, step) VALUES (running.job, 'settled', running.step);
        END IF;
    END LOOP;
    BEGIN
        PERFORM tenure.wake_jobs(woken);
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        INSERT INTO tenure.group_ends (job_id, ended_as, step)
        SELECT (w ->> 0)::uuid, 'settled', w ->> 1
          FROM jsonb_array_elements(steps) AS w WHERE (w ->> 0)::uuid = ANY (woken);
    END;
END $$;

REVOKE ALL ON FUNCTION tenure.wake_step_jobs(uuid[], jsonb) FROM PUBLIC;
