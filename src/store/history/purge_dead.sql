-- purge_dead: dead letters of some age go, with what else is known of their jobs.
--
--   $1 queue or NULL  $2 kind or NULL  $3 category or NULL  $4 seconds since they died, at least
--   $5 text in the error or NULL  $6 died no later than this, or NULL  $7 row limit
--   $8 of these ids, or NULL
--
-- Their unique keys are free again. A submission's identity stays: its message may still come.
WITH old AS MATERIALIZED (
    SELECT id FROM tenure.dead_letter_jobs
     WHERE ($1::text IS NULL OR queue = $1)
       AND ($2::text IS NULL OR kind = $2)
       AND ($3::text IS NULL OR category = $3)
       AND died_at <= statement_timestamp() - $4::float8 * interval '1 second'
       AND ($5::text IS NULL OR strpos(last_error, $5) > 0)
       AND ($6::timestamptz IS NULL OR died_at <= $6)
       AND ($8::uuid[] IS NULL OR id = ANY ($8))
     ORDER BY died_at
     LIMIT $7
       FOR UPDATE SKIP LOCKED
), attempts AS (
    DELETE FROM tenure.job_executions e USING old WHERE e.job_id = old.id
), keys AS (
    DELETE FROM tenure.job_keys k USING old WHERE k.job_id = old.id AND k.stream_seq IS NULL
), effects AS (
    DELETE FROM tenure.effects e USING old WHERE e.job_id = old.id
)
DELETE FROM tenure.dead_letter_jobs d USING old WHERE d.id = old.id
RETURNING d.id
