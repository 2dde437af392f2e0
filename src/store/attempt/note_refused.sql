-- note_refused: record the refused writes of a stale worker.
--
--   $1 job ids  $2 the tokens of the writes  $3 the kinds of write  $4 worker id
INSERT INTO tenure.recovery_events (event, path, job_id, fencing_token, owner_before, reason, recovered_by)
SELECT 'refused_write', 'worker', u.id, u.token, $4, u.reason, $4
  FROM unnest((SELECT $1::uuid[]), $2::bigint[], $3::text[]) AS u(id, token, reason)
