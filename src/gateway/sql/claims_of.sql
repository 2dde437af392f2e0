-- claims_of: the claims that these workers hold and made before a moment. The answer to some may have been lost.
--
--   $1 worker ids  $2 the moment of each
--
-- `n` is the number of the question, from 1 on: one worker may have asked twice, about two moments.
--
-- Reads the table of live jobs as a whole: no index holds what a claim changes. A worker asks only after an answer of a
-- gateway did not arrive.
SELECT asked.n, j.id, j.fencing_token, j.claim_id
  FROM unnest($1::text[], $2::timestamptz[]) WITH ORDINALITY AS asked(worker_id, before, n)
  JOIN tenure.jobs j USING (worker_id)
 WHERE j.status = 'processing' AND j.started_at <= asked.before
