-- settle: end attempts that did not complete (retry, snooze, release, fail, cancel), under their claim.
--
--   $1 ids  $2 tokens  $3 claim ids  $4 verdicts  $5 errors  $6 categories  $7 delays in seconds
--   $8 recovery reasons (a release; else NULL)  $9 ordinals  $10 worker id
--   $11 how many releases a job may have before its outages are charged: RELEASES_MAX
--   $12 the reason of a release for an outage: Reason::Outage
--
-- One row an ended attempt, with the route of its job. For a job without a row, ask settled_as.sql.
-- Locks the rows in order of id, then routes each by its values *after* the lock.
-- Gives the ids once more as an array: see progress.sql.
-- A job that was released $11 times may itself cause the outages: from then on, a release for an outage is a retry.
-- SKIP LOCKED: a handler's transaction may hold its row for long, and must not hold up the ends of all other
-- attempts. The worker tries the skipped one again: settled_as.sql says that its claim has not ended.
-- Made of parts: `scripts/statement settle` prints it whole.
WITH locked AS MATERIALIZED (
    SELECT u.ord, CASE WHEN charged THEN 'retried' ELSE u.verdict END AS verdict, u.error,
           u.category, u.delay_s,
           CASE WHEN u.reason IS NOT NULL AND NOT charged THEN 'worker' END AS path, u.reason, $10::text AS recovered_by,
           statement_timestamp() - j.last_activity_at AS silence,
-- include job/parts/locked_job.sql
      FROM unnest((SELECT $1::uuid[]), $2::bigint[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::float8[],
                  $8::text[], $9::int[])
           AS u(id, token, claim_id, verdict, error, category, delay_s, reason, ord)
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
)
-- include job/parts/end_attempt.sql
