-- create_history_partitions: creates the daily partitions of job_history, by the time in the id, from yesterday's to
-- that of `days_ahead` days ahead, at most 31. Returns how many it has created.
--
-- Called by create_partitions.sql, with each scan, and by the baseline.
-- SECURITY DEFINER: a worker need not own the tables; postgres/roles.sql takes it from PUBLIC and grants it to workers.
-- Two at once create nothing twice: the second waits for the first, and passes over what is there. A day that cannot be
-- created costs nothing but speed: its rows go to the default partition, and the next call tries again. A lost answer
-- means the same.
CREATE OR REPLACE FUNCTION tenure.create_history_partitions(days_ahead int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    day     date;
    name    text;
    low     uuid;
    high    uuid;
    created int := 0;
BEGIN
    FOR i IN -1..least(days_ahead, 31) LOOP
        day  := (statement_timestamp() AT TIME ZONE 'UTC')::date + i;
        name := 'job_history_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('tenure.' || name) IS NOT NULL;
        low  := rpad(lpad(to_hex((extract(epoch FROM day) * 1000)::bigint), 12, '0'), 32, '0')::uuid;
        high := rpad(lpad(to_hex((extract(epoch FROM day + 1) * 1000)::bigint), 12, '0'), 32, '0')::uuid;
        BEGIN
            EXECUTE format('CREATE TABLE tenure.%I PARTITION OF tenure.job_history FOR VALUES FROM (%L) TO (%L)',
                           name, low, high);
            created := created + 1;
        EXCEPTION
            -- Two at once; rows of a fast clock in the default partition; a long lock. All harmless:
            -- those rows stay in, or go to, the default partition.
            WHEN duplicate_table OR check_violation OR lock_not_available OR unique_violation THEN NULL;
        END;
    END LOOP;
    RETURN created;
END $$;
