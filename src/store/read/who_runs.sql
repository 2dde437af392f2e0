-- who_runs: whether live workers serve a queue and run a kind of it, and whether the queue is paused.
--
--   $1 queue  $2 kind
SELECT coalesce(bool_or(w.queues @> ARRAY[$1]), false) AS serves_queue,
       coalesce(bool_or(w.queues @> ARRAY[$1] AND (w.kinds IS NULL OR $2 = ANY (w.kinds))), false) AS runs_kind,
       EXISTS (SELECT FROM tenure.queues q WHERE q.queue = $1 AND q.paused_at IS NOT NULL) AS is_paused
  FROM tenure.workers w
 WHERE w.last_seen_at > statement_timestamp() - 3 * w.renew_every
