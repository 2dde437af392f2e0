-- Lets `tend_lanes` look at each lane whose next look lies ahead: the clock has stepped back, and that time may be one
-- of before. A look too many finds that nothing is due, and writes the right time.
--
-- src/store/lane/wake_lanes_ahead.sql calls it: a worker that has found the last scan ahead of the clock, before it
-- scans, so that the next one does it if this one dies.
-- SECURITY DEFINER: a worker may not change lanes.
-- Two calls at once wait for each other's rows, and the second finds nothing. Those that a call of `admit` has locked
-- are passed over: that call writes their time.
CREATE OR REPLACE FUNCTION tenure.wake_lanes_ahead() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    UPDATE tenure.lanes l SET next_at = moment
     WHERE l.ctid = ANY (ARRAY(SELECT ctid FROM tenure.lanes WHERE next_at > moment FOR NO KEY UPDATE SKIP LOCKED));
    -- The wake of a job that is due then stays: its time was chosen by somebody.
    UPDATE tenure.lane_wakes w SET at = moment
     WHERE w.ctid = ANY (ARRAY(SELECT ctid FROM tenure.lane_wakes
                                WHERE at > moment AND job_id IS NULL FOR NO KEY UPDATE SKIP LOCKED));
END $$;

REVOKE ALL ON FUNCTION tenure.wake_lanes_ahead() FROM PUBLIC;
