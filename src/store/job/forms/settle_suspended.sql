-- settle_suspended: settle.sql for batches with attempts that wait for events, or for jobs of their own.
--
--   $1 to $12 as settle.sql  $13 what each attempt waits for: the name of an event or a step, or NULL
--
-- The row is locked first. The function sees what was committed before the lock, which the statement's snapshot may not
-- show; what comes later finds the job held, and wakes it. So neither order loses an event.
-- Made of parts: `scripts/statement settle_suspended` prints it whole.
WITH taken AS MATERIALIZED (
    SELECT u.ord, CASE WHEN charged THEN 'retried' ELSE u.verdict END AS verdict, u.error,
           u.category, u.delay_s, u.awaits,
           CASE WHEN u.reason IS NOT NULL AND NOT charged THEN 'worker' END AS path, u.reason, $10::text AS recovered_by,
           statement_timestamp() - j.last_activity_at AS silence,
-- include job/parts/locked_job.sql
      FROM unnest((SELECT $1::uuid[]), $2::bigint[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::float8[],
                  $8::text[], $9::int[], $13::text[])
           AS u(id, token, claim_id, verdict, error, category, delay_s, reason, ord, awaits)
      JOIN tenure.jobs j ON j.id = u.id
     CROSS JOIN LATERAL (
           SELECT u.verdict = 'released' AND u.reason IS NOT DISTINCT FROM $12::text
                  AND (SELECT count(*) >= $11::bigint FROM tenure.job_executions e
                        WHERE e.job_id = u.id AND e.outcome = 'released') AS charged) c
     WHERE j.id = ANY ((SELECT $1::uuid[])::uuid[])
       AND j.fencing_token = u.token
       AND j.claim_id = u.claim_id
       AND j.status = 'processing'
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
), locked AS MATERIALIZED (
    SELECT ord, verdict, error, category,
           CASE WHEN awaits IS NULL THEN delay_s ELSE tenure.suspended_for(id, awaits, delay_s, started_at) END AS delay_s,
           path, reason, recovered_by, silence, id, queue, kind, attempt, max_attempts, fencing_token, claim_id, worker_id,
           started_at, cancel_requested_at, losses, on_crash, lane, priority
      FROM taken
)
-- include job/parts/end_attempt.sql
