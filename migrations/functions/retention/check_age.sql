-- check_age: returns how long something is kept, unless that is less than an hour: then it raises an error.
--
-- Called by the purge_* functions, which run as the schema's owner for workers: so none of them deletes what is
-- younger, whatever its caller says. NULL stays NULL: for ever. It reads no table, and so PUBLIC may execute it.
CREATE OR REPLACE FUNCTION tenure.check_age(age interval) RETURNS interval
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF age < interval '1 hour' THEN
        RAISE EXCEPTION 'what is kept for less than an hour (%) is not purged', age USING ERRCODE = '22023';
    END IF;
    RETURN age;
END $$;
