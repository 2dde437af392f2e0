-- dead_letter: one dead letter, with all its columns.
--
--   $1 id
SELECT id, queue, kind, subject, attempt, max_attempts, fencing_token, worker_id, created_at, died_at,
       losses, last_error, category, payload IS NULL AS refused, octet_length(raw_payload) AS raw_bytes,
       payload::text AS payload, raw_payload, checkpoint::text AS checkpoint,
       execution_history::text AS execution_history
  FROM tenure.dead_letter_jobs
 WHERE id = $1
