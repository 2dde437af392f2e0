-- dead_letters: jobs that failed, the latest first, without their payloads.
--
--   $1 queue or NULL  $2 kind or NULL  $3 category or NULL  $4 seconds since they died, at least
--   $5 text in the error or NULL  $6 died no later than this, or NULL  $7 row limit
--   $8 died before this, or NULL  $9 and its id is lower than this, or it died earlier
SELECT id, queue, kind, subject, attempt, max_attempts, fencing_token, worker_id, created_at, died_at,
       losses, last_error, category, payload IS NULL AS refused, octet_length(raw_payload) AS raw_bytes
  FROM tenure.dead_letter_jobs
 WHERE ($1::text IS NULL OR queue = $1)
   AND ($2::text IS NULL OR kind = $2)
   AND ($3::text IS NULL OR category = $3)
   AND died_at <= statement_timestamp() - $4::float8 * interval '1 second'
   AND ($5::text IS NULL OR strpos(last_error, $5) > 0)
   AND ($6::timestamptz IS NULL OR died_at <= $6)
   AND ($8::timestamptz IS NULL OR (died_at, id) < ($8, $9::uuid))
 ORDER BY died_at DESC, id DESC
 LIMIT $7
