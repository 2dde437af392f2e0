-- lane_settings: the queues with lanes.
--
--   $1 queue or NULL: all
--
-- One row a queue. tokens: those of the queue's own bucket, now.
SELECT s.queue, s.running, s.rate, s.burst, s.queue_rate, s.queue_burst, s.turns, s.ordered, s.required, s.changed_at,
       least(s.queue_burst, coalesce(s.tokens + s.queue_rate * greatest(0, extract(epoch FROM statement_timestamp()
             - s.refilled_at)), s.queue_burst))::float8 AS tokens,
       (SELECT count(*) FROM tenure.lanes l WHERE l.queue = s.queue) AS lanes,
       (SELECT count(*) FROM tenure.lane_jobs w WHERE w.queue = s.queue) AS held,
       (SELECT count(*) FROM tenure.lane_slots t WHERE t.queue = s.queue) AS released
  FROM tenure.lane_settings s
 WHERE s.removed_at IS NULL AND ($1::text IS NULL OR s.queue = $1)
 ORDER BY s.queue
