-- Moves the jobs that wait in River into tenure, in one transaction. docs/coming-from.md tells of the variables.
--
--   psql "$DATABASE_URL" -v queue=mail -v dry_run=on -f examples/import/river.sql
--
-- A job that was moved is `cancelled` in River, and its metadata name tenure's job. River removes it after a day.

\if :{?schema}
\else
    \set schema public
\endif
\if :{?prefix}
\else
    \set prefix river
\endif
SELECT format('%I.river_job', :'schema') AS source \gset
\ir parts/begin.sql

CREATE TEMP TABLE import_jobs ON COMMIT DROP AS
WITH waiting AS MATERIALIZED (
    SELECT r.*
      FROM :source r
     WHERE (r.state IN ('available', 'retryable', 'scheduled') OR :'dead'::boolean AND r.state = 'discarded')
       AND (:'queue' = '' OR r.queue = :'queue')
       AND NOT r.metadata ?| '{workflow_id,batch_id}'
     ORDER BY r.scheduled_at, r.id
     LIMIT nullif(:'limit', '')::bigint
       -- A job that a client has just taken runs.
       FOR UPDATE SKIP LOCKED
)
SELECT w.id::text AS source_id, w.queue AS source_queue, w.kind AS source_kind, w.state::text AS state,
       w.args AS payload, NULL::text AS source_key,
       CASE WHEN w.state = 'discarded' THEN now() ELSE w.scheduled_at END AS run_at,
       CASE WHEN w.state = 'discarded' THEN 1 ELSE greatest(1, w.max_attempts - w.attempt) END AS attempts_left,
       jsonb_build_object('id', w.id, 'attempt', w.attempt, 'priority', w.priority, 'tags', w.tags,
                          'metadata', w.metadata) AS meta,
       w.metadata <> '{}' OR w.tags <> '{}' AS has_meta
  FROM waiting w
 ORDER BY w.scheduled_at, w.id;

CREATE TEMP TABLE import_left ON COMMIT DROP AS
SELECT r.id::text AS source_id, r.queue AS source_queue, r.kind AS source_kind, says.why, says.advice
  FROM :source r
 CROSS JOIN LATERAL (
     SELECT CASE r.state::text WHEN 'running' THEN 'it runs'
                               WHEN 'pending' THEN 'it waits for other jobs'
                               WHEN 'discarded' THEN 'it is discarded'
                               ELSE CASE WHEN r.metadata ?| '{workflow_id,batch_id}' THEN 'it belongs to others'
                                         ELSE 'another transaction has it, or it is above -v limit' END END,
            CASE r.state::text WHEN 'running' THEN 'Let River''s workers end it.'
                               WHEN 'pending' THEN 'Let River end its workflow.'
                               WHEN 'discarded' THEN 'Nothing, or try it once more in tenure: -v dead=on.'
                               ELSE CASE WHEN r.metadata ?| '{workflow_id,batch_id}'
                                         THEN 'Let River end its workflow or batch.'
                                         ELSE 'Run the script again.' END END) AS says(why, advice)
 WHERE r.state NOT IN ('completed', 'cancelled')
   AND (:'queue' = '' OR r.queue = :'queue')
   AND NOT EXISTS (SELECT FROM import_jobs j WHERE j.source_id = r.id::text);

\ir parts/move.sql

CREATE TEMP TABLE import_gone ON COMMIT DROP AS
WITH gone AS (
    UPDATE :source r
       SET state = 'cancelled', finalized_at = now(),
           metadata = r.metadata || jsonb_build_object('tenure_job_id', j.job_id)
      FROM import_jobs j
     WHERE r.id = j.source_id::bigint AND j.job_id IS NOT NULL
    RETURNING r.id
)
SELECT id FROM gone;

\ir parts/end.sql
