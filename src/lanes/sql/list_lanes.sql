-- list_lanes: the lanes of a queue, those first that wait longest.
--
--   $1 queue  $2 lane or NULL: all  $3 row limit  $4 where each count stops
--
-- waiting: held jobs that are due; later: those that are not due yet. slots: jobs that run or have a message; running:
-- those that run. tokens: now; next_s: the seconds until the lane is looked at again, if it waits for a time.
WITH heads AS MATERIALIZED (
    SELECT l.*,
           (SELECT w.due_at FROM tenure.lane_jobs w
             WHERE w.queue = l.queue AND w.lane = l.lane AND w.place IS NOT NULL
             ORDER BY w.priority, w.place, w.arrival LIMIT 1) AS head_due_at
      FROM tenure.lanes l
     WHERE l.queue = $1 AND ($2::text IS NULL OR l.lane = $2)
), first AS MATERIALIZED (
    SELECT * FROM heads ORDER BY head_due_at NULLS LAST, lane LIMIT $3
)
SELECT f.lane, f.weight, f.running AS own_limit, CASE WHEN s.ordered THEN 1 ELSE coalesce(f.running, s.running) END AS most,
       (SELECT count(*) FROM (SELECT FROM tenure.lane_jobs w
                               WHERE w.queue = f.queue AND w.lane = f.lane AND w.place IS NOT NULL LIMIT $4) c) AS waiting,
       (SELECT count(*) FROM tenure.lane_slots t WHERE t.queue = f.queue AND t.lane = f.lane) AS slots,
       (SELECT count(*) FROM tenure.lane_slots t JOIN tenure.jobs j ON j.id = t.job_id AND j.status = 'processing'
         WHERE t.queue = f.queue AND t.lane = f.lane) AS running,
       CASE WHEN s.rate IS NOT NULL THEN
            least(s.burst, coalesce(f.tokens + s.rate * greatest(0, extract(epoch FROM statement_timestamp()
                  - f.refilled_at)), s.burst)) END::float8 AS tokens,
       s.burst, s.rate, f.turn IS NOT NULL AS in_turn,
       extract(epoch FROM f.next_at - statement_timestamp())::float8 AS next_s,
       extract(epoch FROM statement_timestamp() - f.head_due_at)::float8 AS waited_s
  FROM first f
  LEFT JOIN tenure.lane_settings s ON s.queue = f.queue
 ORDER BY f.head_due_at NULLS LAST, f.lane
