-- Moves the jobs that wait in Oban into tenure, in one transaction. docs/coming-from.md tells of the variables.
--
--   psql "$DATABASE_URL" -v queue=mail -v dry_run=on -f examples/import/oban.sql
--
-- A job that was moved is `cancelled` in Oban, and its meta names tenure's job. Oban's pruner removes it.

\if :{?schema}
\else
    \set schema public
\endif
\if :{?prefix}
\else
    \set prefix oban
\endif
SELECT format('%I.oban_jobs', :'schema') AS source \gset
\ir parts/begin.sql

CREATE TEMP TABLE import_jobs ON COMMIT DROP AS
WITH waiting AS MATERIALIZED (
    SELECT o.*
      FROM :source o
     WHERE (o.state IN ('available', 'scheduled', 'retryable') OR :'dead'::boolean AND o.state = 'discarded')
       AND (:'queue' = '' OR o.queue = :'queue')
       AND (o.meta ?| '{workflow_id,batch_id,chain_id}') IS NOT TRUE
     ORDER BY o.scheduled_at, o.id
     LIMIT nullif(:'limit', '')::bigint
       -- A job that a producer has just taken runs.
       FOR UPDATE SKIP LOCKED
)
SELECT w.id::text AS source_id, w.queue AS source_queue, w.worker AS source_kind, w.state::text AS state,
       w.args AS payload, NULL::text AS source_key,
       -- Oban's times are UTC, and have no zone.
       CASE WHEN w.state = 'discarded' THEN now() ELSE w.scheduled_at AT TIME ZONE 'UTC' END AS run_at,
       CASE WHEN w.state = 'discarded' THEN 1 ELSE greatest(1, w.max_attempts - w.attempt) END AS attempts_left,
       jsonb_build_object('id', w.id, 'attempt', w.attempt, 'priority', w.priority, 'tags', w.tags,
                          'meta', w.meta) AS meta,
       coalesce(w.meta <> '{}' OR w.tags <> '{}', false) AS has_meta
  FROM waiting w
 ORDER BY w.scheduled_at, w.id;

CREATE TEMP TABLE import_left ON COMMIT DROP AS
SELECT o.id::text AS source_id, o.queue AS source_queue, o.worker AS source_kind, says.why, says.advice
  FROM :source o
 CROSS JOIN LATERAL (
     SELECT CASE o.state::text WHEN 'executing' THEN 'it runs'
                               WHEN 'suspended' THEN 'it waits for other jobs'
                               WHEN 'discarded' THEN 'it is discarded'
                               ELSE CASE WHEN o.meta ?| '{workflow_id,batch_id,chain_id}' THEN 'it belongs to others'
                                         ELSE 'another transaction has it, or it is above -v limit' END END,
            CASE o.state::text WHEN 'executing' THEN 'Let Oban''s nodes end it.'
                               WHEN 'suspended' THEN 'Let Oban end its workflow.'
                               WHEN 'discarded' THEN 'Nothing, or try it once more in tenure: -v dead=on.'
                               ELSE CASE WHEN o.meta ?| '{workflow_id,batch_id,chain_id}'
                                         THEN 'Let Oban end its workflow, batch or chain.'
                                         ELSE 'Run the script again.' END END) AS says(why, advice)
 WHERE o.state::text NOT IN ('completed', 'cancelled')
   AND (:'queue' = '' OR o.queue = :'queue')
   AND NOT EXISTS (SELECT FROM import_jobs j WHERE j.source_id = o.id::text);

\ir parts/move.sql

CREATE TEMP TABLE import_gone ON COMMIT DROP AS
WITH gone AS (
    UPDATE :source o
       SET state = 'cancelled', cancelled_at = now() AT TIME ZONE 'UTC',
           meta = coalesce(o.meta, '{}') || jsonb_build_object('tenure_job_id', j.job_id)
      FROM import_jobs j
     WHERE o.id = j.source_id::bigint AND j.job_id IS NOT NULL
    RETURNING o.id
)
SELECT id FROM gone;

\ir parts/end.sql
