-- Leaves the oldest of the many wakes that each of these lanes may have: nobody can look at the lane now. `tend_lanes`
-- sees the oldest wakes only, and a lane that a transaction holds for long would hide the others.
--
--   of: the queue   lanes: the lanes   moment: the time of this call
--
-- Called by `admit` and `tend_lanes`, with their rights, their search_path and their settings for plans.
-- A wake that another call has locked stays to it.
CREATE OR REPLACE FUNCTION tenure.pass_over_lanes(of text, lanes text[], moment timestamptz) RETURNS void
LANGUAGE sql VOLATILE AS $$
    WITH gone AS (
        DELETE FROM tenure.lane_wakes w
         WHERE w.ctid = ANY (ARRAY(SELECT ctid FROM tenure.lane_wakes
                                    WHERE queue = of AND lane = ANY (lanes) AND job_id IS NULL AND at <= moment
                                      FOR UPDATE SKIP LOCKED))
        RETURNING w.lane, w.at
    )
    INSERT INTO tenure.lane_wakes (at, queue, lane) SELECT min(at), of, lane FROM gone GROUP BY lane
$$;

REVOKE ALL ON FUNCTION tenure.pass_over_lanes(text, text[], timestamptz) FROM PUBLIC;
