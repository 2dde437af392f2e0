-- purge_events: deletes recovery events older than `keep`, the oldest first, at most `step`. Returns how many.
--
-- Called by purge_events.sql, of a worker's sweep.
-- SECURITY DEFINER: a worker may not delete what has happened; this deletes nothing younger than an hour
-- (tenure.check_age).
-- Two at once delete each row once.
CREATE OR REPLACE FUNCTION tenure.purge_events(keep interval, step int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    event_count bigint;
BEGIN
    DELETE FROM tenure.recovery_events
     WHERE id IN (SELECT id FROM tenure.recovery_events
                   WHERE at < statement_timestamp() - tenure.check_age(keep) ORDER BY at LIMIT step);
    GET DIAGNOSTICS event_count = ROW_COUNT;
    RETURN event_count;
END $$;

REVOKE ALL ON FUNCTION tenure.purge_events(interval, int) FROM PUBLIC;
