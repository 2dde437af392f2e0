-- complete_in: complete.sql for one job, as the last statement of the user's transaction.
--
--   $1 job id  $2 token  $3 claim id  $4 output (JSON text)
--
-- No row: this worker no longer owns the job, and the transaction must be rolled back.
WITH done AS (
    DELETE FROM tenure.jobs
     WHERE id = $1 AND fencing_token = $2 AND claim_id = $3 AND status = 'processing'
    RETURNING *
), moved AS (
    INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
           claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at,
           stage, progress, message, output, trace_context, last_error)
    SELECT id, queue, kind, payload, 'completed', attempt, max_attempts, fencing_token,
           claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, clock_timestamp(),
           stage, progress, message, $4::jsonb, trace_context, last_error
      FROM done
)
SELECT id FROM done
