-- dead_letters: dead letters, the latest first, without their payloads.
--
--   $1 to $8 which: see dead_filter.sql  $9 row limit
--   $10 died before this, or NULL  $11 and its id is lower than this, or it died earlier
--
-- Made of parts: `scripts/statement dead_letters` prints it whole.
SELECT id, queue, kind, subject, attempt, max_attempts, fencing_token, worker_id, created_at, died_at,
       losses, last_error, category, payload IS NULL AS refused, octet_length(raw_payload) AS raw_bytes
  FROM tenure.dead_letter_jobs
 WHERE
-- include read/parts/dead_filter.sql
   AND ($10::timestamptz IS NULL OR (died_at, id) < ($10, $11::uuid))
 ORDER BY died_at DESC, id DESC
 LIMIT $9
