-- ended_attempts: the attempts that settle.sql ends, locked in order of id; the parameters are its own.
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
