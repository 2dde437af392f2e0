-- fleet: the latest measurements, with ages as of now. One row a queue, and one without a queue for all of them.
SELECT NULL AS queue, NULL::bigint AS due, NULL::bigint AS scheduled, NULL::bigint AS processing,
       coalesce(extract(epoch FROM statement_timestamp() - s.relay_due_at), 0)::float8 AS lag_s,
       coalesce(s.grace_until > statement_timestamp(), false) OR s.breaker_since IS NOT NULL AS held,
       extract(epoch FROM statement_timestamp() - s.measured_at)::float8 AS age_s, coalesce(s.dead, 0) AS dead,
       (SELECT count(*) FROM tenure.workers WHERE last_seen_at > statement_timestamp() - 3 * renew_every) AS workers
  FROM tenure.scanner_state s
 UNION ALL
SELECT queue, coalesce(t.due, 0), coalesce(t.scheduled, 0), coalesce(t.processing, 0),
       coalesce(extract(epoch FROM statement_timestamp() - t.oldest_due_at), 0)::float8, q.paused_at IS NOT NULL,
       NULL, NULL,
       (SELECT count(*) FROM tenure.workers w
         WHERE queue = ANY (w.queues) AND w.last_seen_at > statement_timestamp() - 3 * w.renew_every)
  FROM tenure.queue_stats t
  FULL JOIN tenure.queues q USING (queue)
