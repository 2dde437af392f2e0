-- Locks the rows of these followers, and returns them. One that another transaction has locked is noted anew, and so is
-- one that another call has just cancelled.
--
--   cancelled: those that were cancelled before, and may have been restored by this call
--
-- Part of `release_held_jobs`, with its rights and settings. It waits for no lock.
CREATE OR REPLACE FUNCTION tenure.lock_followers(followers uuid[], cancelled uuid[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    locked_here uuid[];
BEGIN
    SELECT array_agg(f.job_id) INTO locked_here
      FROM (SELECT f.job_id FROM tenure.followers f WHERE f.job_id = ANY (followers) ORDER BY f.job_id
               FOR NO KEY UPDATE SKIP LOCKED) f;
    INSERT INTO tenure.group_ends (job_id, ended_as)
    SELECT f.job_id, 'settled' FROM tenure.followers f
     WHERE f.job_id = ANY (followers)
       AND ((f.job_id IN (SELECT unnest(locked_here))) IS NOT TRUE
            OR f.cut_at IS NOT NULL AND (f.job_id IN (SELECT unnest(cancelled))) IS NOT TRUE);
    RETURN locked_here;
END $$;

REVOKE ALL ON FUNCTION tenure.lock_followers(uuid[], uuid[]) FROM PUBLIC;
