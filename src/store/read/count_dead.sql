-- count_dead: how many dead letters there are of these, counted to a number, and when that was.
--
--   $1 queue or NULL  $2 kind or NULL  $3 category or NULL  $4 seconds since they died, at least
--   $5 text in the error or NULL  $6 died no later than this, or NULL  $7 count no further
SELECT count(*) AS jobs, statement_timestamp() AS now
  FROM (SELECT FROM tenure.dead_letter_jobs
         WHERE ($1::text IS NULL OR queue = $1)
           AND ($2::text IS NULL OR kind = $2)
           AND ($3::text IS NULL OR category = $3)
           AND died_at <= statement_timestamp() - $4::float8 * interval '1 second'
           AND ($5::text IS NULL OR strpos(last_error, $5) > 0)
           AND ($6::timestamptz IS NULL OR died_at <= $6)
         LIMIT $7) d
