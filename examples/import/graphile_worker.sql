-- Moves the jobs that wait in graphile-worker (0.14 or later) into tenure, in one transaction. docs/coming-from.md
-- tells of the variables.
--
--   psql "$DATABASE_URL" -v queue=mail -v dry_run=on -f examples/import/graphile_worker.sql
--
-- A job that was moved is deleted: graphile-worker keeps no ended job, and would add to one of the same key.
-- A job without a queue is of queue `default` here. A named queue runs one job at a time: let tenure do so, too.

\if :{?schema}
\else
    \set schema graphile_worker
\endif
\if :{?prefix}
\else
    \set prefix graphile
\endif
SELECT format('%I._private_jobs', :'schema') AS source \gset
\ir parts/begin.sql

-- No worker takes a job of a queue that is locked; one that is locked already runs a job.
CREATE TEMP TABLE import_queues ON COMMIT DROP AS
SELECT q.id, q.queue_name FROM :"schema"._private_job_queues q WHERE q.locked_at IS NULL FOR UPDATE SKIP LOCKED;

CREATE TEMP TABLE import_jobs ON COMMIT DROP AS
WITH waiting AS MATERIALIZED (
    SELECT g.id, g.payload, g.priority, g.run_at, g.attempts, g.max_attempts, g.last_error, g.key, g.flags,
           t.identifier, coalesce(q.queue_name, 'default') AS queue_name
      FROM :source g
      JOIN :"schema"._private_tasks t ON t.id = g.task_id
      LEFT JOIN import_queues q ON q.id = g.job_queue_id
     WHERE g.locked_at IS NULL
       AND (g.attempts < g.max_attempts OR :'dead'::boolean)
       AND (g.job_queue_id IS NULL OR q.id IS NOT NULL)
       AND (:'queue' = '' OR coalesce(q.queue_name, 'default') = :'queue')
       -- jsonb cannot hold it.
       AND strpos(g.payload::text, '\u0000') = 0
     ORDER BY g.priority, g.run_at, g.id
     LIMIT nullif(:'limit', '')::bigint
       -- A job that a worker has just taken runs.
       FOR UPDATE OF g SKIP LOCKED
)
SELECT w.id::text AS source_id, w.queue_name AS source_queue, w.identifier AS source_kind,
       CASE WHEN w.attempts >= w.max_attempts THEN 'failed'
            WHEN w.attempts > 0 THEN 'retry' ELSE 'waiting' END AS state,
       w.payload::jsonb AS payload, w.key AS source_key,
       CASE WHEN w.attempts >= w.max_attempts THEN now() ELSE w.run_at END AS run_at,
       greatest(1, w.max_attempts - w.attempts) AS attempts_left,
       jsonb_build_object('id', w.id, 'attempts', w.attempts, 'priority', w.priority, 'flags', w.flags, 'key', w.key,
                          'last_error', w.last_error) AS meta,
       w.flags IS NOT NULL AS has_meta
  FROM waiting w
 ORDER BY w.priority, w.run_at, w.id;

CREATE TEMP TABLE import_left ON COMMIT DROP AS
SELECT g.id::text AS source_id, coalesce(q.queue_name, 'default') AS source_queue, t.identifier AS source_kind,
       says.why, says.advice
  FROM :source g
  JOIN :"schema"._private_tasks t ON t.id = g.task_id
  LEFT JOIN :"schema"._private_job_queues q ON q.id = g.job_queue_id
 CROSS JOIN LATERAL (
     SELECT CASE WHEN g.locked_at IS NOT NULL THEN 'it runs'
                 WHEN g.attempts >= g.max_attempts THEN 'it has failed for good'
                 WHEN q.locked_at IS NOT NULL THEN 'a job of its queue runs'
                 WHEN strpos(g.payload::text, '\u0000') > 0 THEN 'its payload holds \u0000'
                 ELSE 'another transaction has it, or it is above -v limit' END,
            CASE WHEN g.locked_at IS NOT NULL
                 THEN format('Let its worker end it; if that is dead, call force_unlock_workers with %s.', g.locked_by)
                 WHEN g.attempts >= g.max_attempts THEN 'Nothing, or try it once more in tenure: -v dead=on.'
                 WHEN q.locked_at IS NOT NULL THEN 'Run the script again when that job has ended.'
                 WHEN strpos(g.payload::text, '\u0000') > 0 THEN 'jsonb cannot store it: let graphile-worker run it.'
                 ELSE 'Run the script again.' END) AS says(why, advice)
 WHERE (:'queue' = '' OR coalesce(q.queue_name, 'default') = :'queue')
   AND NOT EXISTS (SELECT FROM import_jobs j WHERE j.source_id = g.id::text);

\ir parts/move.sql

CREATE TEMP TABLE import_gone ON COMMIT DROP AS
WITH gone AS (
    DELETE FROM :source g
     USING import_jobs j
     WHERE g.id = j.source_id::bigint AND j.job_id IS NOT NULL
    RETURNING g.id
)
SELECT id FROM gone;

\ir parts/end.sql
