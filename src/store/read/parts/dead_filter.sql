-- dead_filter: which dead letters.
--
--   $1 queue or NULL  $2 kind or NULL  $3 category or NULL  $4 seconds since they died, at least
--   $5 text in the error or NULL  $6 died no later than this, or NULL  $7 group or NULL: see error_group.sql
--   $8 tags that the job has, or NULL. OFFSET: or the planner could read all tags as a whole
       ($1::text IS NULL OR queue = $1)
   AND ($2::text IS NULL OR kind = $2)
   AND ($3::text IS NULL OR category = $3)
   AND died_at <= statement_timestamp() - $4::float8 * interval '1 second'
   AND ($5::text IS NULL OR strpos(last_error, $5) > 0)
   AND ($6::timestamptz IS NULL OR died_at <= $6)
   AND ($7::text IS NULL OR $7 =
-- include read/parts/error_group.sql
       )
   AND ($8::text[] IS NULL OR NOT EXISTS (
           SELECT FROM unnest($8::text[]) AS wanted(tag)
            WHERE NOT EXISTS (SELECT FROM tenure.job_tags t WHERE t.job_id = id AND t.tag = wanted.tag OFFSET 0)))
