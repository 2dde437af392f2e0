-- Notes those of these followers anew whose jobs another transaction has locked, and returns the others, with their
-- jobs locked. One without a job that can be seen is one of the others.
--
-- Part of `release_held_jobs`, with its rights and settings. It waits for no lock.
CREATE OR REPLACE FUNCTION tenure.defer_locked_jobs(followers uuid[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    locked_here uuid[];
    locked_jobs uuid[];
BEGIN
    SELECT array_agg(j.id) INTO locked_here
      FROM (SELECT j.id FROM tenure.jobs j WHERE j.id = ANY (followers) ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED) j;
    locked_jobs := ARRAY(SELECT j.id FROM tenure.jobs j
                          WHERE j.id = ANY (followers) AND (j.id IN (SELECT unnest(locked_here))) IS NOT TRUE);
    INSERT INTO tenure.group_ends (job_id, ended_as) SELECT l.id, 'settled' FROM unnest(locked_jobs) AS l(id);
    RETURN ARRAY(SELECT unnest(followers) EXCEPT SELECT unnest(locked_jobs));
END $$;

REVOKE ALL ON FUNCTION tenure.defer_locked_jobs(uuid[]) FROM PUBLIC;
