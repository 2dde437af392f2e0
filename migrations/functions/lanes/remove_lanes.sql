-- Takes a queue's lanes away; returns whether it had any. Nothing limits its jobs any more, and those that are held are
-- released as the relay gets to them.
--
-- The library calls it (src/lanes/sql/remove_lanes.sql), and `forget_lanes` after it: that one waits for readers of
-- the table, too. Until then the trigger stays.
-- SECURITY DEFINER: a program may not write the settings of lanes.
-- No call of `admit` is under way: it waits for the lock. If the answer is lost, a second call returns false.
CREATE OR REPLACE FUNCTION tenure.remove_lanes(of text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
BEGIN
    LOCK TABLE tenure.lanes IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM tenure.lane_settings s WHERE s.queue = of AND s.ordered) THEN
        PERFORM tenure.place_anew(of, false);
    END IF;
    UPDATE tenure.lane_settings s
       SET running = NULL, rate = NULL, burst = NULL, queue_rate = NULL, queue_burst = NULL, turns = false,
           ordered = false, required = false, tokens = NULL, removed_at = clock_timestamp()
     WHERE s.queue = of AND s.removed_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE tenure.lanes l SET next_at = clock_timestamp(), running = NULL, weight = NULL WHERE l.queue = of;
    RETURN true;
END $$;

REVOKE ALL ON FUNCTION tenure.remove_lanes(text) FROM PUBLIC;
