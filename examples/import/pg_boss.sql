-- Moves the jobs that wait in pg-boss (10 or later) into tenure, in one transaction. docs/coming-from.md tells of the
-- variables.
--
--   psql "$DATABASE_URL" -v queue=mail -v dry_run=on -f examples/import/pg_boss.sql
--
-- A queue of pg-boss is one kind of job: its name becomes both the queue and the kind.
-- A job that was moved is `cancelled` in pg-boss, and its output names tenure's job. pg-boss removes it in time.

\if :{?schema}
\else
    \set schema pgboss
\endif
\if :{?prefix}
\else
    \set prefix pg-boss
\endif
SELECT format('%I.job', :'schema') AS source \gset
\ir parts/begin.sql

-- Columns that later versions have are read from the row as JSON.
CREATE TEMP TABLE import_jobs ON COMMIT DROP AS
WITH waiting AS MATERIALIZED (
    SELECT b.id, b.name, b.state, b.data, b.priority, b.retry_limit, b.retry_count, b.started_on, b.start_after,
           b.singleton_key, b.created_on, to_jsonb(b) ->> 'group_id' AS group_id
      FROM :source b
     WHERE (b.state IN ('created', 'retry') OR :'dead'::boolean AND b.state = 'failed')
       AND (:'queue' = '' OR b.name = :'queue')
       AND NOT starts_with(b.name, '__pgboss__')
       AND (to_jsonb(b) ->> 'blocked')::boolean IS NOT TRUE AND (to_jsonb(b) ->> 'blocking')::boolean IS NOT TRUE
     ORDER BY b.priority DESC, b.created_on, b.id
     LIMIT nullif(:'limit', '')::bigint
       -- A job that a worker has just taken runs.
       FOR UPDATE SKIP LOCKED
)
SELECT w.id::text AS source_id, w.name AS source_queue, w.name AS source_kind, w.state::text AS state,
       w.data AS payload, w.singleton_key AS source_key,
       CASE WHEN w.state = 'failed' THEN now() ELSE w.start_after END AS run_at,
       -- The first attempt is no retry.
       CASE WHEN w.state = 'failed' THEN 1
            ELSE greatest(1, w.retry_limit + 1 - CASE WHEN w.started_on IS NULL THEN 0 ELSE w.retry_count + 1 END)
       END AS attempts_left,
       jsonb_build_object('id', w.id, 'retry_count', w.retry_count, 'priority', w.priority,
                          'singleton_key', w.singleton_key, 'group_id', w.group_id) AS meta,
       w.group_id IS NOT NULL AS has_meta
  FROM waiting w
 ORDER BY w.priority DESC, w.created_on, w.id;

CREATE TEMP TABLE import_left ON COMMIT DROP AS
SELECT b.id::text AS source_id, b.name AS source_queue, b.name AS source_kind, says.why, says.advice
  FROM :source b
 CROSS JOIN LATERAL (
     SELECT (to_jsonb(b) ->> 'blocked')::boolean IS TRUE
         OR (to_jsonb(b) ->> 'blocking')::boolean IS TRUE) AS flow(is_in)
 CROSS JOIN LATERAL (
     SELECT CASE WHEN b.state = 'active' THEN 'it runs'
                 WHEN b.state = 'failed' THEN 'it has failed'
                 WHEN starts_with(b.name, '__pgboss__') THEN 'it is pg-boss''s own'
                 WHEN flow.is_in THEN 'it belongs to a flow'
                 ELSE 'another transaction has it, or it is above -v limit' END,
            CASE WHEN b.state = 'active' THEN 'Let pg-boss''s workers end it.'
                 WHEN b.state = 'failed' THEN 'Nothing, or try it once more in tenure: -v dead=on.'
                 WHEN starts_with(b.name, '__pgboss__') THEN 'Nothing: create a schedule in tenure.'
                 WHEN flow.is_in THEN 'Let pg-boss end its flow.'
                 ELSE 'Run the script again.' END) AS says(why, advice)
 WHERE b.state NOT IN ('completed', 'cancelled')
   AND (:'queue' = '' OR b.name = :'queue')
   AND NOT EXISTS (SELECT FROM import_jobs j WHERE j.source_id = b.id::text);

\ir parts/move.sql

CREATE TEMP TABLE import_gone ON COMMIT DROP AS
WITH gone AS (
    UPDATE :source b
       SET state = 'cancelled', completed_on = now(), output = jsonb_build_object('tenure_job_id', j.job_id)
      FROM import_jobs j
     WHERE b.id = j.source_id::uuid AND b.name = j.source_queue AND j.job_id IS NOT NULL
    RETURNING b.id
)
SELECT id FROM gone;

\ir parts/end.sql
