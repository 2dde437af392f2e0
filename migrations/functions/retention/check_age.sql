-- check_age: returns how long something is kept, unless that is less than an hour: then it raises an error.
--
-- Called by purge_audit, purge_cancelled, purge_day, purge_dead, purge_events, purge_keys and purge_rows, which run as
-- the schema's owner for workers: no caller can have them delete what is younger. NULL stays NULL: for ever.
-- It reads no table, and so PUBLIC may execute it.
CREATE OR REPLACE FUNCTION tenure.check_age(age interval) RETURNS interval
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF age < interval '1 hour' THEN
        RAISE EXCEPTION 'what is kept for less than an hour (%) is not purged', age USING ERRCODE = '22023';
    END IF;
    RETURN age;
END $$;

GRANT EXECUTE ON FUNCTION tenure.check_age(interval) TO PUBLIC;
