-- who_runs: whether live workers serve a queue and run a kind of it, and whether the queue is paused.
--
--   $1 queue  $2 kind
--
-- `not_ready`: if none of the workers that run the kind takes jobs, what keeps one of them from it.
SELECT coalesce(bool_or(w.queues @> ARRAY[$1]), false) AS serves_queue,
       count(*) FILTER (WHERE runs.kind) > 0 AS runs_kind,
       CASE WHEN bool_and(w.not_ready IS NOT NULL) FILTER (WHERE runs.kind)
            THEN max(w.not_ready) FILTER (WHERE runs.kind) END AS not_ready,
       EXISTS (SELECT FROM tenure.queues q WHERE q.queue = $1 AND q.paused_at IS NOT NULL) AS is_paused
  FROM tenure.workers w
 CROSS JOIN LATERAL (SELECT w.queues @> ARRAY[$1] AND (w.kinds IS NULL OR $2 = ANY (w.kinds)) AS kind) AS runs
 WHERE w.last_seen_at > statement_timestamp() - 3 * w.renew_every
