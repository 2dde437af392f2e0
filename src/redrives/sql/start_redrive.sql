-- start_redrive: lists the dead letters that a calm redrive will redrive, the oldest first.
--
--   $1 to $8 which: see dead_filter.sql  $9 the selection as JSON  $10 jobs of the canary
--   $11 jobs a second after it, or NULL  $12 the share of failures at which it stops
--   $13 who acts: by what, and the name
--
-- No row: no dead letter matches, and no redrive has begun. Forgets redrives that ended long ago.
-- Made of parts: `scripts/statement start_redrive` prints it whole.
WITH picked AS MATERIALIZED (
    SELECT id, row_number() OVER (ORDER BY died_at, id) AS place
      FROM tenure.dead_letter_jobs
     WHERE
-- include read/parts/dead_filter.sql
       AND payload IS NOT NULL
), forgotten AS (
    DELETE FROM tenure.redrives WHERE ended_at < clock_timestamp() - interval '30 days'
), begun AS (
    INSERT INTO tenure.redrives (selection, canary, rate, stop_at, jobs)
    SELECT $9::text::jsonb, $10, $11, $12, count(*) FROM picked HAVING count(*) > 0
    RETURNING *
), listed AS (
    INSERT INTO tenure.redrive_jobs (redrive_id, place, job_id)
    SELECT begun.id, picked.place, picked.id FROM begun CROSS JOIN picked
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue, subject, jobs, details)
    SELECT ($13::text[])[1], ($13::text[])[2], 'redrive_calmly', selection->>'queue', id::text, jobs, selection
      FROM begun
)
SELECT id, started_at, selection::text AS selection, canary, rate, stop_at, jobs, redriven, completed, failed, cancelled,
       waiting, missing, state, reason, ended_at
  FROM begun
