-- settle: end attempts that did not complete (retry, snooze, release, fail, cancel), under their claim.
--
--   $1 ids  $2 tokens  $3 claim ids  $4 verdicts  $5 errors  $6 categories  $7 delays in seconds
--   $8 recovery reasons (a release; else NULL)  $9 ordinals  $10 worker id
--
-- One row an attempt ended, and where its job went. A job that is missing: ask settled_as.sql.
-- Rows are locked in order of id, then routed by what they are *after* the lock.
-- The ids once more by array: see progress.sql.
-- A job that was given back twenty times may be what takes the database away: from then on its outages are charged.
-- SKIP LOCKED: a transaction of one handler may hold its row for long, and must not hold up the ends of
-- all others. Its own is tried again: settled_as.sql says that nothing has happened yet.
WITH locked AS MATERIALIZED (
    SELECT u.ord, CASE WHEN charged THEN 'retried' ELSE u.verdict END AS verdict, u.error,
           nullif(u.category, 'outage') AS category, u.delay_s,
           CASE WHEN u.reason IS NOT NULL AND NOT charged THEN 'worker' END AS path, u.reason, $10::text AS recovered_by,
           statement_timestamp() - j.last_activity_at AS silence,
           j.id, j.queue, j.kind, j.attempt, j.max_attempts, j.fencing_token, j.claim_id, j.worker_id,
           j.started_at, j.cancel_requested_at, j.losses, j.on_crash
      FROM unnest((SELECT $1::uuid[]), $2::bigint[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::float8[],
                  $8::text[], $9::int[])
           AS u(id, token, claim_id, verdict, error, category, delay_s, reason, ord)
      JOIN tenure.jobs j ON j.id = u.id
     CROSS JOIN LATERAL (
           SELECT u.verdict = 'released' AND u.category IS NOT DISTINCT FROM 'outage'
                  AND (SELECT count(*) >= 20 FROM tenure.job_executions e
                        WHERE e.job_id = u.id AND e.outcome = 'released') AS charged) c
     WHERE j.id = ANY ((SELECT $1::uuid[])::uuid[])
       AND j.fencing_token = u.token
       AND j.claim_id = u.claim_id
       AND j.status = 'processing'
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
)
