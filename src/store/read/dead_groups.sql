-- dead_groups: dead letters that died of the same, the most first, of the latest so many.
--
--   $1 queue or NULL  $2 kind or NULL  $3 category or NULL  $4 seconds since they died, at least
--   $5 text in the error or NULL  $6 died no later than this, or NULL  $7 row limit  $8 how many of the latest are looked at
--
-- The same: an error that differs in nothing but numbers, ids and what stands in quotes; they are # in `shape`.
-- `example` is one of them, whole.
SELECT queue, kind, category, shape, count(*) AS jobs, min(died_at) AS oldest, max(died_at) AS newest,
       max(last_error) AS example
  FROM (SELECT queue, kind, category, died_at, left(last_error, 2000) AS last_error,
               regexp_replace(left(last_error, 200), '"[^"]*"|''[^'']*''|\m[0-9a-f]{8}[0-9a-f-]*\M|[0-9]+', '#', 'g') AS shape
          FROM tenure.dead_letter_jobs
         WHERE ($1::text IS NULL OR queue = $1)
           AND ($2::text IS NULL OR kind = $2)
           AND ($3::text IS NULL OR category = $3)
           AND died_at <= statement_timestamp() - $4::float8 * interval '1 second'
           AND ($5::text IS NULL OR strpos(last_error, $5) > 0)
           AND ($6::timestamptz IS NULL OR died_at <= $6)
         ORDER BY died_at DESC
         LIMIT $8) d
 GROUP BY queue, kind, category, shape
 ORDER BY jobs DESC, newest DESC
 LIMIT $7
