-- purge_dead: delete dead letters, with the attempts, effects, tags, logs and unique keys of their jobs.
--
--   $1 to $8 which: see dead_filter.sql  $9 row limit
--   $10 of these ids, or NULL  $11 who acts: by what, and the name
--
-- Their unique keys are free again. A submission's identity stays: its message may still come.
-- Made of parts: `scripts/statement purge_dead` prints it whole.
WITH old AS MATERIALIZED (
    SELECT id FROM tenure.dead_letter_jobs
     WHERE
-- include read/parts/dead_filter.sql
       AND ($10::uuid[] IS NULL OR id = ANY ($10))
     ORDER BY died_at
     LIMIT $9
       FOR UPDATE SKIP LOCKED
), attempts AS (
    DELETE FROM tenure.job_executions e USING old WHERE e.job_id = old.id
), keys AS (
    DELETE FROM tenure.job_keys k USING old WHERE k.job_id = old.id AND k.stream_seq IS NULL
), effects AS (
    DELETE FROM tenure.effects e USING old WHERE e.job_id = old.id
), tags AS (
    DELETE FROM tenure.job_tags t USING old WHERE t.job_id = old.id
), logs AS (
    DELETE FROM tenure.job_logs l USING old WHERE l.job_id = old.id
), gone AS (
    DELETE FROM tenure.dead_letter_jobs d USING old WHERE d.id = old.id
    RETURNING d.id, d.queue
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue, subject, jobs)
    SELECT ($11::text[])[1], ($11::text[])[2], 'purge_dead', CASE WHEN min(queue) = max(queue) THEN min(queue) END,
           CASE WHEN count(*) = 1 THEN min(id::text) END, count(*)
      FROM gone
     WHERE $11 IS NOT NULL
    HAVING count(*) > 0
)
SELECT id FROM gone
