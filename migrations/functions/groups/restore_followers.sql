-- Brings back those of the cancelled followers that are ready: a failure had cancelled them, and the job has completed
-- after all. One that comes back is held until `release_held_jobs`; it has a clear_reason, as a redriven job has, and
-- so stays in its cell. What follows it waits for it again.
--
-- Part of `release_followers`, with its rights and settings. One that another transaction has locked is noted anew; one
-- that cannot come back gets a warning, and `mend_groups` has it tried again. Neither keeps back another.
CREATE OR REPLACE FUNCTION tenure.restore_followers(cancelled uuid[], ready uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    locked_here uuid[];
    follower    record;
BEGIN
    IF cancelled IS NULL OR ready IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(f.job_id) INTO locked_here
      FROM (SELECT f.job_id FROM tenure.followers f
             WHERE f.job_id = ANY (cancelled) AND (f.job_id IN (SELECT unnest(ready))) IS TRUE ORDER BY f.job_id
               FOR NO KEY UPDATE SKIP LOCKED) f;
    INSERT INTO tenure.group_ends (job_id, ended_as)
    SELECT c.id, 'settled'
      FROM unnest(cancelled) AS c(id)
     WHERE (c.id IN (SELECT unnest(ready))) IS TRUE AND (c.id IN (SELECT unnest(locked_here))) IS NOT TRUE;
    FOR follower IN
        SELECT f.* FROM tenure.followers f WHERE f.job_id = ANY (locked_here) AND f.cut_at IS NOT NULL ORDER BY f.job_id
    LOOP
        BEGIN
            WITH restored AS (
                DELETE FROM tenure.job_history h WHERE h.id = follower.job_id AND h.status = 'cancelled' RETURNING h.*
            ), expiring AS (
                INSERT INTO tenure.job_expiries (at, job_id)
                SELECT greatest(follower.not_after, clock_timestamp()), r.id
                  FROM restored r WHERE follower.not_after IS NOT NULL
                    ON CONFLICT DO NOTHING
            )
            INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, fencing_token, created_at, scheduled_at,
                   trace_context, dispatch, publish_at, clear_reason, lane, priority, not_after, expires_as, group_id)
            SELECT r.id, r.queue, r.kind, r.payload, r.max_attempts, r.fencing_token, r.created_at, clock_timestamp(),
                   r.trace_context, 0, clock_timestamp(), 'redriven', follower.lane, follower.priority,
                   follower.not_after, follower.expires_as, follower.group_id
              FROM restored r;
            UPDATE tenure.followers f SET cut_at = NULL WHERE f.job_id = follower.job_id;
            UPDATE tenure.job_edges d SET state = NULL, ended_at = NULL
             WHERE d.before = follower.job_id AND d.state = 'cancelled';
        EXCEPTION
        WHEN lock_not_available OR deadlock_detected OR query_canceled OR serialization_failure THEN
            RAISE;
        WHEN OTHERS THEN
            RAISE WARNING 'job % cannot come back: %', follower.job_id, SQLERRM;
        END;
    END LOOP;
END $$;

REVOKE ALL ON FUNCTION tenure.restore_followers(uuid[], uuid[]) FROM PUBLIC;
