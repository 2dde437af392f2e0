-- Finds the first text that is no time or no interval in the jobs that `enqueue_many` gets: a message, and a hint.
-- NULL: none.
--
-- Called by `enqueue_many` when it could not read the jobs. It only computes, and PUBLIC may execute it.
CREATE OR REPLACE FUNCTION tenure.fault_in_times(jobs jsonb) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    field record;
BEGIN
    FOR field IN
        SELECT e.n - 1 AS n, f.name, f.value
          FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, n)
         CROSS JOIN LATERAL jsonb_each_text(e.job) AS f(name, value)
         WHERE f.name IN ('run_at', 'delay', 'not_after', 'longest_wait') AND f.value IS NOT NULL
         ORDER BY e.n, f.name
    LOOP
        BEGIN
            IF field.name IN ('run_at', 'not_after') THEN
                PERFORM field.value::timestamptz;
            ELSE
                PERFORM field.value::interval;
            END IF;
        EXCEPTION WHEN data_exception THEN
            RETURN ARRAY[format('jobs[%s] %s: %s', field.n, field.name, SQLERRM),
                         'Write a delay as in "90 seconds", and a time as in "2030-01-31T12:00:00Z".'];
        END;
    END LOOP;
    RETURN NULL;
END $$;

GRANT EXECUTE ON FUNCTION tenure.fault_in_times(jsonb) TO PUBLIC;
