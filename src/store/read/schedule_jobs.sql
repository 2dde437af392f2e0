-- schedule_jobs: the latest jobs of a schedule, the newest first: those of its queue and kind with its payload.
--
--   $1 queue  $2 kind  $3 payload (JSON text)  $4 the field that gets the time of the tick, or NULL  $5 row limit
--
-- No job names its schedule: a job that a producer enqueued with the same payload is among them.
SELECT id, queue, kind, NULL::text AS payload, status, attempt, max_attempts, fencing_token, worker_id, created_at,
       scheduled_at, started_at, last_activity_at, finished_at, stage, progress, message, NULL::text AS output, last_error
  FROM tenure.all_jobs
 WHERE queue = $1 AND kind = $2
   AND CASE WHEN $4::text IS NULL THEN payload = $3::text::jsonb
            ELSE payload @> ($3::text::jsonb - $4) AND jsonb_exists(payload, $4)
       END
 ORDER BY id DESC
 LIMIT $5
