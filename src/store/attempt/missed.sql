-- missed: the reason why a claim was refused.
--
--   $1 ids  $2 ordinals
--
-- A statement of its own, after the claim: the claim's own snapshot is older than its wait for the row
-- lock, and would answer 'queued, no owner'.
SELECT u.ord,
       j.queue, j.kind, j.status, j.worker_id, j.claim_id, j.fencing_token, j.dispatch,
       j.published_at IS NOT NULL AS message_known,
       q.paused_at IS NOT NULL AS paused, q.max_running IS NOT NULL AS limited,
       extract(epoch FROM j.scheduled_at - statement_timestamp())::float8 AS due_in_s,
       extract(epoch FROM j.last_activity_at + j.stale_after - statement_timestamp())::float8 AS stale_in_s,
       coalesce(j.not_after <= statement_timestamp(), false) AS expired,
       f.finished IS NOT NULL AS finished
  FROM unnest((SELECT $1::uuid[]), $2::int[]) AS u(id, ord)
  LEFT JOIN tenure.jobs j ON j.id = u.id AND j.id = ANY ((SELECT $1::uuid[])::uuid[])
  LEFT JOIN tenure.queues q ON q.queue = j.queue
  LEFT JOIN LATERAL (
       SELECT 1 AS finished FROM tenure.job_history h WHERE h.id = u.id
       UNION ALL
       SELECT 1 FROM tenure.dead_letter_jobs d WHERE d.id = u.id
       UNION ALL
       -- Finished and purged: its key remains.
       SELECT 1 FROM tenure.job_keys k WHERE k.job_id = u.id
       LIMIT 1) f ON j.id IS NULL
