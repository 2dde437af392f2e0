-- sweep_lanes: remove the rows of lanes that have no job and no settings of their own; returns how many.
--
--   $1 row limit
--
-- A bucket of tokens goes once it would be full again: a new one begins full. A call of tenure.admit that waits for such
-- a row passes the lane over; the wake of the job that it brings is still there.
WITH empty AS MATERIALIZED (
    SELECT l.queue, l.lane
      FROM tenure.lanes l
      LEFT JOIN tenure.lane_settings s ON s.queue = l.queue
     WHERE l.turn IS NULL AND l.next_at IS NULL AND l.weight IS NULL AND l.running IS NULL
       AND (s.rate IS NULL OR l.tokens IS NULL
            OR l.tokens + s.rate * greatest(0, extract(epoch FROM statement_timestamp() - l.refilled_at)) >= s.burst)
       AND NOT EXISTS (SELECT FROM tenure.lane_jobs w WHERE w.queue = l.queue AND w.lane = l.lane AND w.place IS NOT NULL)
       AND NOT EXISTS (SELECT FROM tenure.lane_slots t WHERE t.queue = l.queue AND t.lane = l.lane)
     ORDER BY l.queue, l.lane
     LIMIT $1
       FOR UPDATE OF l SKIP LOCKED
), gone AS (
    DELETE FROM tenure.lanes l USING empty e WHERE l.queue = e.queue AND l.lane = e.lane RETURNING 1
), removed AS (
    -- Of a queue whose lanes were removed, once nothing of it is left.
    DELETE FROM tenure.lane_settings s
     WHERE s.removed_at IS NOT NULL
       AND NOT EXISTS (SELECT FROM tenure.lanes l WHERE l.queue = s.queue)
       AND NOT EXISTS (SELECT FROM tenure.lane_jobs w WHERE w.queue = s.queue)
)
SELECT count(*) AS lanes FROM gone
