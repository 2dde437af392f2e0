-- Cancels followers for the failure of a job before them, and says which in their last_error. Only one that is held and
-- has never started is cancelled, and only if an edge says so now: what the locks show counts.
--
--   failed_followers, hopeless_followers: as `take_group_notes` says
--   locked: those that another transaction has locked
--   has_cancelled: a next call works off the ends of those that are cancelled
--
-- Part of `release_followers`, with its rights and settings. Those that are locked are noted anew, with what is known
-- of the failure: their jobs, or their rows of `followers`, by a redrive that may be about to hold them.
-- `end_queued` may wait for a place in a lane.
CREATE OR REPLACE FUNCTION tenure.cancel_followers(doomed uuid[], failed_followers uuid[], hopeless_followers uuid[],
    OUT locked uuid[], OUT has_cancelled boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    never  CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    moment CONSTANT timestamptz := clock_timestamp();
    locked_followers uuid[];
    locked_jobs      uuid[];
    follower         record;
BEGIN
    has_cancelled := false;
    IF doomed IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(f.job_id) INTO locked_followers
      FROM (SELECT f.job_id FROM tenure.followers f WHERE f.job_id = ANY (doomed) ORDER BY f.job_id
               FOR NO KEY UPDATE SKIP LOCKED) f;
    SELECT array_agg(j.id) INTO locked_jobs
      FROM (SELECT j.id FROM tenure.jobs j
             WHERE j.id = ANY (locked_followers) AND j.status = 'queued' AND (j.publish_at = never) IS TRUE
               AND j.fencing_token = 0
             ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED) j;
    locked := ARRAY(SELECT unnest(doomed) EXCEPT SELECT unnest(locked_followers)) || ARRAY(
        SELECT j.id FROM tenure.jobs j
         WHERE j.id = ANY (locked_followers) AND j.status = 'queued' AND (j.publish_at = never) IS TRUE
           AND j.fencing_token = 0 AND (j.id IN (SELECT unnest(locked_jobs))) IS NOT TRUE);
    INSERT INTO tenure.group_ends (job_id, ended_as, lacks)
    SELECT l.id, 'settled', CASE WHEN (l.id IN (SELECT unnest(hopeless_followers))) IS TRUE THEN 'cancelled'
                                 WHEN (l.id IN (SELECT unnest(failed_followers))) IS TRUE THEN 'failed' END
      FROM unnest(locked) AS l(id);
    FOR follower IN
        SELECT j.id, j.lane, j.priority, j.not_after, j.expires_as, d.before, d.state
          FROM tenure.jobs j
         CROSS JOIN LATERAL (SELECT d.before, d.state FROM tenure.job_edges d
                              WHERE d.after = j.id AND d.state <> 'completed' AND d.state IS NOT NULL
                                AND d.step IS NULL LIMIT 1) d
         WHERE j.id = ANY (locked_jobs)
         ORDER BY j.id
    LOOP
        UPDATE tenure.followers f
           SET cut_at = moment, lane = follower.lane, priority = follower.priority, not_after = follower.not_after,
               expires_as = follower.expires_as
         WHERE f.job_id = follower.id;
        UPDATE tenure.jobs j
           SET last_error = format('job %s, which it was to follow, %s', follower.before,
                                   CASE follower.state WHEN 'cancelled' THEN 'was cancelled'
                                                       WHEN 'purged' THEN 'was purged' ELSE 'has failed' END)
         WHERE j.id = follower.id;
        PERFORM tenure.end_queued(follower.id);
        has_cancelled := true;
    END LOOP;
END $$;

REVOKE ALL ON FUNCTION tenure.cancel_followers(uuid[], uuid[], uuid[]) FROM PUBLIC;
