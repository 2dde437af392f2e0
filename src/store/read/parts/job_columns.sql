-- job_columns: what a list shows of jobs `j` of all_jobs. $12: whether to read payloads and outputs.
    SELECT id, queue, kind, CASE WHEN $12 THEN payload::text END AS payload, status, attempt, max_attempts,
           fencing_token, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at, stage,
           progress, message, CASE WHEN $12 THEN output::text END AS output, last_error, payload IS NULL AS is_refused
