-- Removes the rows of lanes that have no job and no settings of their own, at most `most`, and the settings of
-- removed lanes once nothing of them is left. Returns how many lanes it removed.
--
-- The worker that tidies up calls it (src/lanes/sql/sweep_lanes.sql).
-- SECURITY DEFINER: a worker may not delete a limit, nor the settings of a queue.
-- A bucket of tokens goes once it would be full again: a new one begins full. A call of `admit` that waits for such a
-- row passes the lane over; the wake of the job that it brings is still there.
CREATE OR REPLACE FUNCTION tenure.sweep_lanes(most bigint) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH empty AS MATERIALIZED (
        SELECT l.queue, l.lane
          FROM tenure.lanes l
          LEFT JOIN tenure.lane_settings s ON s.queue = l.queue
         WHERE l.turn IS NULL AND l.next_at IS NULL AND l.weight IS NULL AND l.running IS NULL
           AND (s.rate IS NULL OR l.tokens IS NULL
                OR l.tokens + s.rate * greatest(0, extract(epoch FROM statement_timestamp() - l.refilled_at))
                   >= s.burst)
           AND NOT EXISTS (SELECT FROM tenure.lane_jobs w
                            WHERE w.queue = l.queue AND w.lane = l.lane AND w.place IS NOT NULL)
           AND NOT EXISTS (SELECT FROM tenure.lane_slots t WHERE t.queue = l.queue AND t.lane = l.lane)
         ORDER BY l.queue, l.lane
         LIMIT most
           FOR UPDATE OF l SKIP LOCKED
    ), gone AS (
        DELETE FROM tenure.lanes l USING empty e WHERE l.queue = e.queue AND l.lane = e.lane RETURNING 1
    ), removed AS (
        DELETE FROM tenure.lane_settings s
         WHERE s.removed_at IS NOT NULL
           AND NOT s.holds
           AND NOT EXISTS (SELECT FROM tenure.lanes l WHERE l.queue = s.queue)
           AND NOT EXISTS (SELECT FROM tenure.lane_jobs w WHERE w.queue = s.queue)
    )
    SELECT count(*) FROM gone
$$;

REVOKE ALL ON FUNCTION tenure.sweep_lanes(bigint) FROM PUBLIC;
