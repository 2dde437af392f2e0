-- purge_dead: delete dead letters, with the attempts, effects and unique keys of their jobs.
--
--   $1 to $7 which: see dead_filter.sql  $8 row limit
--   $9 of these ids, or NULL
--
-- Their unique keys are free again. A submission's identity stays: its message may still come.
-- Made of parts: `scripts/statement purge_dead` prints it whole.
WITH old AS MATERIALIZED (
    SELECT id FROM tenure.dead_letter_jobs
     WHERE
-- include read/parts/dead_filter.sql
       AND ($9::uuid[] IS NULL OR id = ANY ($9))
     ORDER BY died_at
     LIMIT $8
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
