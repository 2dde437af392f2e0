-- live_jobs: the ids of a queue's live jobs, a page at a time.
--
--   $1 queue  $2 kind or NULL  $3 after this id  $4 row limit  $5 created no later than this
SELECT id
  FROM tenure.jobs
 WHERE queue = $1 AND ($2::text IS NULL OR kind = $2) AND id > $3 AND created_at <= $5
 ORDER BY id
 LIMIT $4
