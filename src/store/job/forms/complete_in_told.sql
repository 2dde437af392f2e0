-- complete_in_told: complete_in.sql for a job whose last report is not written yet.
--
--   $1 to $4 as in complete_in.sql  $5 report (JSON text: stage, progress, message); a missing field stays as it is
--
-- Made of parts: `scripts/statement complete_in_told` prints it whole.
-- include job/parts/complete_locked.sql
       FOR UPDATE OF j
-- include job/parts/complete_taken.sql
, moved AS (
    INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
           claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at,
           stage, progress, message, output, trace_context, last_error)
    SELECT id, queue, kind, payload, 'completed', attempt, max_attempts, fencing_token,
           claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, clock_timestamp(),
           coalesce($5::text::jsonb ->> 'stage', stage),
           coalesce(($5::text::jsonb ->> 'progress')::real, progress),
           coalesce($5::text::jsonb ->> 'message', message), output::jsonb, trace_context, last_error
      FROM done
)
SELECT id, claim_id FROM done
