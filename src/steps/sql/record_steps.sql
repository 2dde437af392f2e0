-- record_steps: record steps of running jobs, under the fence. Also a sign of life of each job.
--
--   $1 ids of the jobs (sorted)  $2 the tokens among them  $3 the claim ids among them
--   one element a step: $4 claim ids  $5 names  $6 what they are (`step`, `sleep`)  $7 results (JSON text)
--   $8 how long a step has run, or how long a sleep lasts, in seconds
--
-- One row a step of a job that is still ours. `recorded`: the record is this attempt's, also if an earlier call wrote
-- it and its answer was lost; otherwise another effect of the job has the name, be it of this call, or an earlier call
-- committed while this one waited for its record, and a second call sees it. Without a row the job is not ours, or another transaction has
-- locked its row: ask still_mine.sql. SKIP LOCKED: a transaction that holds one row must not hold up the others.
-- A claim id belongs to one claim of one job: see progress.sql. The update is HOT, as in progress.sql.
WITH mine AS MATERIALIZED (
    SELECT j.id, j.claim_id, j.fencing_token
      FROM tenure.jobs j
     WHERE j.id = ANY ($1::uuid[])
       AND j.fencing_token = ANY ($2::bigint[])
       AND j.claim_id = ANY ($3::uuid[])
       AND j.status = 'processing'
     ORDER BY j.id
       FOR NO KEY UPDATE OF j SKIP LOCKED
), alive AS (
    UPDATE tenure.jobs j
       SET last_activity_at = clock_timestamp()
     WHERE j.id = ANY (ARRAY(SELECT id FROM mine))
), said AS MATERIALIZED (
    SELECT s.ord, m.id AS job_id, m.fencing_token, s.key, s.step_kind, s.result, s.seconds * interval '1 second' AS lasts,
           row_number() OVER (PARTITION BY m.id, s.key ORDER BY s.ord) = 1 AS is_first
      FROM unnest($4::uuid[], $5::text[], $6::text[], $7::text[], $8::float8[])
           WITH ORDINALITY AS s (claim_id, key, step_kind, result, seconds, ord)
      JOIN mine m USING (claim_id)
), written AS (
    INSERT INTO tenure.effects (job_id, key, fencing_token, result, step_kind, began_at, wakes_at)
    SELECT job_id, key, fencing_token, result::jsonb, step_kind,
           clock_timestamp() - CASE WHEN step_kind = 'step' THEN lasts ELSE interval '0' END,
           CASE WHEN step_kind = 'sleep' THEN clock_timestamp() + lasts END
      FROM said
     WHERE is_first
     ORDER BY job_id, key
        ON CONFLICT (job_id, key) DO NOTHING
    RETURNING job_id, key
)
SELECT (said.ord - 1)::int AS ord,
       said.is_first AND (w.key IS NOT NULL
                       OR coalesce(e.fencing_token = said.fencing_token AND e.step_kind = said.step_kind, false)) AS recorded
  FROM said
  LEFT JOIN written w USING (job_id, key)
  LEFT JOIN tenure.effects e USING (job_id, key)
