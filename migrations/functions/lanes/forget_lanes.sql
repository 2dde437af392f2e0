-- Lets go of the new jobs of a queue, once its lanes are removed. Raises an error if it has to wait for the table for
-- long; new jobs are then held for a moment.
--
-- The library calls it after `remove_lanes` (src/lanes/sql/forget_lanes.sql).
-- SECURITY DEFINER: the person on call does not own the table.
-- Lanes that come back meanwhile wait for the row of settings, and then have new jobs held anew.
CREATE OR REPLACE FUNCTION tenure.forget_lanes(of text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '300ms' AS $$
BEGIN
    PERFORM FROM tenure.lane_settings s WHERE s.queue = of AND s.removed_at IS NOT NULL FOR UPDATE;
    IF FOUND THEN
        PERFORM tenure.hold_new_jobs();
        IF NOT EXISTS (SELECT FROM tenure.lane_settings s WHERE s.holds) THEN
            DROP TRIGGER IF EXISTS lanes ON tenure.jobs;
            DROP TRIGGER IF EXISTS lanes_ordered ON tenure.jobs;
            DROP FUNCTION IF EXISTS tenure.has_lanes(text), tenure.has_lanes_ordered(text);
        END IF;
    END IF;
END $$;

REVOKE ALL ON FUNCTION tenure.forget_lanes(text) FROM PUBLIC;
