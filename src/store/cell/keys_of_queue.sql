-- keys_of_queue: the unique keys of a queue, a page at a time.
--
--   $1 queue  $2 after this key  $3 taken at this time or later, or NULL  $4 row limit
SELECT key, job_id
  FROM tenure.job_keys
 WHERE scope = $1 AND key > $2 AND ($3::timestamptz IS NULL OR created_at >= $3)
 ORDER BY key
 LIMIT $4
