-- Drops the trigger that holds the new jobs of a queue, once the queue's lanes are removed. Raises an error if it has
-- to wait for the table for long; the trigger then stays, and holds new jobs for a moment.
--
-- The library calls it after `remove_lanes` (src/store/lane/forget_lanes.sql).
-- SECURITY DEFINER: the person on call does not own the table.
-- Lanes that come back meanwhile wait for the row of settings, and then create the trigger anew.
CREATE OR REPLACE FUNCTION tenure.forget_lanes(of text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '300ms' AS $$
BEGIN
    PERFORM FROM tenure.lane_settings s WHERE s.queue = of AND s.removed_at IS NOT NULL FOR UPDATE;
    IF FOUND THEN
        EXECUTE format('DROP TRIGGER IF EXISTS %I ON tenure.jobs', replace(tenure.mark_of(of), 'mark_', 'lanes_'));
    END IF;
END $$;

REVOKE ALL ON FUNCTION tenure.forget_lanes(text) FROM PUBLIC;
