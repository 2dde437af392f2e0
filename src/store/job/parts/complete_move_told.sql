-- complete_move_told: the completed rows move into the history, with their last report.
, moved AS (
    INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
           claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at,
           stage, progress, message, output, trace_context, last_error)
    SELECT id, queue, kind, payload, 'completed', attempt, max_attempts, fencing_token,
           claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, clock_timestamp(),
           coalesce(report ->> 'stage', stage), coalesce((report ->> 'progress')::real, progress),
           coalesce(report ->> 'message', message), output::jsonb, trace_context, last_error
      FROM done
)
SELECT id, claim_id FROM done
