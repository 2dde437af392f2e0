-- unserved_schedules: the active schedules whose queue no live worker serves, or whose kind none of its workers runs;
-- the one with the next tick first.
--
--   $1 row limit
SELECT s.name, s.queue, s.kind, served.queue AS is_queue_served,
       extract(epoch FROM s.next_at - statement_timestamp())::float8 AS next_in_s
  FROM tenure.schedules s
 CROSS JOIN LATERAL (
       SELECT count(*) > 0 AS queue, coalesce(bool_or(w.kinds IS NULL OR s.kind = ANY (w.kinds)), false) AS kind
         FROM tenure.workers w
        WHERE w.queues @> ARRAY[s.queue] AND w.last_seen_at > statement_timestamp() - 3 * w.renew_every
          AND w.draining_at IS NULL) AS served
 WHERE s.paused_at IS NULL AND NOT served.kind
 ORDER BY s.next_at, s.name
 LIMIT $1
