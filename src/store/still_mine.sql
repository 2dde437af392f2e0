-- still_mine: which claims are current, and whether their cancellation was asked for.
--
--   $1 ids  $2 tokens  $3 claim ids  $4 ordinals
SELECT u.ord, j.cancel_requested_at IS NOT NULL AS cancel_requested
  FROM unnest((SELECT $1::uuid[]), $2::bigint[], $3::uuid[], $4::int[]) AS u(id, token, claim_id, ord)
  JOIN tenure.jobs j
    ON j.id = u.id AND j.fencing_token = u.token AND j.claim_id = u.claim_id AND j.status = 'processing'
