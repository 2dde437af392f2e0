-- settled_as: the outcome of an attempt, for a worker that lost the answer to its settle.
--
--   $1 ids  $2 tokens  $3 claim ids  $4 ordinals
--
-- One row for exactly this claim: NULL while the attempt runs; `lost`: the job's row stands, and another claim, or none,
-- holds it. No row: the job is gone, or its claim is not known any more.
-- A standby answers NULL, too: it may not know the outcome yet.
SELECT u.ord, s.outcome
  FROM unnest((SELECT $1::uuid[]), $2::bigint[], $3::uuid[], $4::int[]) AS u(id, token, claim_id, ord)
  JOIN LATERAL (
       SELECT NULL::text AS outcome WHERE pg_is_in_recovery()
       UNION ALL
       SELECT NULL FROM tenure.jobs j
        WHERE j.id = u.id AND j.fencing_token = u.token AND j.claim_id = u.claim_id AND j.status = 'processing'
       UNION ALL
       SELECT h.status FROM tenure.job_history h WHERE h.id = u.id AND h.claim_id = u.claim_id
       UNION ALL
       SELECT e.outcome FROM tenure.job_executions e
        WHERE e.job_id = u.id AND e.fencing_token = u.token AND e.claim_id = u.claim_id
       UNION ALL
       SELECT d.last_outcome FROM tenure.dead_letter_jobs d WHERE d.id = u.id AND d.claim_id = u.claim_id
       UNION ALL
       -- A primary that took over before it knew this claim: a completion that keeps no history must not look written.
       SELECT 'lost' FROM tenure.jobs j WHERE j.id = u.id
       LIMIT 1) s ON true
