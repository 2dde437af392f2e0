-- held_for: for what held jobs wait.
--
--   $1 ids
--
-- One row a held job: its lane, when it is or was due, the lane's limit and how many of it run or are about to, the rate
-- and the tokens of the lane and of the queue, how many jobs of its lane come before it (counted to 1,000), and whether
-- the queue is paused.
SELECT w.job_id, w.queue, w.lane, w.priority, w.due_at, w.due_at > statement_timestamp() AS is_later,
       CASE WHEN s.ordered THEN 1 ELSE coalesce(l.running, s.running) END AS most,
       (SELECT count(*) FROM tenure.lane_slots t WHERE t.queue = w.queue AND t.lane = w.lane) AS slots,
       s.rate, s.burst,
       CASE WHEN s.rate IS NOT NULL THEN
            least(s.burst, coalesce(l.tokens + s.rate * greatest(0, extract(epoch FROM statement_timestamp()
                  - l.refilled_at)), s.burst)) END::float8 AS tokens,
       s.queue_rate, s.queue_burst,
       CASE WHEN s.queue_rate IS NOT NULL THEN
            least(s.queue_burst, coalesce(s.tokens + s.queue_rate * greatest(0, extract(epoch FROM statement_timestamp()
                  - s.refilled_at)), s.queue_burst)) END::float8 AS queue_tokens,
       coalesce(s.turns, false) AS turns, coalesce(s.ordered, false) AS ordered,
       coalesce(q.paused_at IS NOT NULL, false) AS paused,
       (SELECT count(*) FROM (
            SELECT FROM tenure.lane_jobs o
             WHERE o.queue = w.queue AND o.lane = w.lane AND o.place IS NOT NULL
               AND (o.priority, o.place, o.arrival) < (w.priority, coalesce(w.place, 9223372036854775807), w.arrival)
             LIMIT 1000) c) AS before
  FROM tenure.lane_jobs w
  LEFT JOIN tenure.lane_settings s ON s.queue = w.queue
  LEFT JOIN tenure.lanes l ON l.queue = w.queue AND l.lane = w.lane
  LEFT JOIN tenure.queues q ON q.queue = w.queue
 WHERE w.job_id = ANY ($1::uuid[])
