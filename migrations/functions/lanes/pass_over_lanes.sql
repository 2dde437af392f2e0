-- Deletes all wakes but the oldest of each of these lanes, which the caller cannot look at now. `tend_lanes` reads the
-- oldest wakes only: thousands of one lane would hide those of the others.
--
--   of: the queue   lanes: the lanes   moment: the time of this call
--
-- Called by `admit` and `tend_lanes`, with their rights, their search_path and their settings for plans.
-- A wake that another call has locked stays to it.
CREATE OR REPLACE FUNCTION tenure.pass_over_lanes(of text, lanes text[], moment timestamptz) RETURNS void
LANGUAGE sql VOLATILE AS $$
    -- Nothing is written for a lane with one wake: the transaction that holds it may keep old rows from being removed.
    DELETE FROM tenure.lane_wakes w
     WHERE w.ctid = ANY (ARRAY(
           SELECT k.ctid FROM tenure.lane_wakes k
            WHERE k.queue = of AND k.lane = ANY (lanes) AND k.job_id IS NULL
              AND k.ctid = ANY (ARRAY(
                  SELECT o.place
                    FROM (SELECT a.ctid AS place, row_number() OVER (PARTITION BY a.lane ORDER BY a.at, a.id) AS nth
                            FROM tenure.lane_wakes a
                           WHERE a.queue = of AND a.lane = ANY (lanes) AND a.job_id IS NULL AND a.at <= moment) o
                   WHERE o.nth > 1))
              FOR UPDATE SKIP LOCKED))
$$;

REVOKE ALL ON FUNCTION tenure.pass_over_lanes(text, text[], timestamptz) FROM PUBLIC;
