-- dead_groups: dead letters that died of the same, the most first. Reads all of them.
--
--   $1 queue or NULL  $2 kind or NULL  $3 category or NULL  $4 row limit
--
-- The same: an error that differs in nothing but numbers, ids and what stands in quotes. `example` is one of them, whole.
SELECT queue, kind, category, count(*) AS jobs, min(died_at) AS oldest, max(died_at) AS newest,
       (array_agg(last_error ORDER BY died_at DESC))[1] AS example
  FROM tenure.dead_letter_jobs
 WHERE ($1::text IS NULL OR queue = $1)
   AND ($2::text IS NULL OR kind = $2)
   AND ($3::text IS NULL OR category = $3)
 GROUP BY queue, kind, category,
       regexp_replace(left(last_error, 200), '"[^"]*"|''[^'']*''|\m[0-9a-f]{8}[0-9a-f-]*\M|[0-9]+', '#', 'g')
 ORDER BY jobs DESC, newest DESC
 LIMIT $4
