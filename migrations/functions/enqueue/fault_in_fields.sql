-- Says what is wrong with the form of the jobs that `enqueue_many` gets, in the first one that is wrong: a message,
-- and a hint. NULL: nothing. It looks at the names and the JSON types of the fields, and not at their values.
--
-- Called by `enqueue_many`. It only computes, and PUBLIC may execute it.
CREATE OR REPLACE FUNCTION tenure.fault_in_fields(jobs jsonb) RETURNS text[]
LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    jobs_max CONSTANT int  := 10000;
    of_names CONSTANT text := 'A job has queue, kind, payload, unique_key, run_at, delay, max_attempts, trace_context, '
                              'lane, priority, not_after, on_expiry, replace, longest_wait, unique_while_queued, '
                              'unique_while_live and tags, as the arguments of tenure.enqueue; only queue and kind are '
                              'required.';
    of_texts CONSTANT text := 'Write a delay as in "90 seconds", and a time as in "2030-01-31T12:00:00Z".';
    fault    text[];
BEGIN
    IF jsonb_typeof(jobs) IS DISTINCT FROM 'array' THEN
        RETURN ARRAY[format('jobs is %s, but must be an array of objects',
                            coalesce('of type ' || jsonb_typeof(jobs), 'NULL')), of_names];
    ELSIF jsonb_array_length(jobs) > jobs_max THEN
        RETURN ARRAY[format('jobs has %s jobs, but at most %s may be enqueued in one call', jsonb_array_length(jobs),
                            jobs_max),
                     'Call it several times in one transaction: all of the jobs, or none.'];
    END IF;
    SELECT ARRAY[format('jobs[%s] is of type %s, but must be an object', e.n - 1, jsonb_typeof(e.job)), of_names]
      INTO fault
      FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, n)
     WHERE jsonb_typeof(e.job) <> 'object'
     ORDER BY e.n LIMIT 1;
    IF fault IS NOT NULL THEN
        RETURN fault;
    END IF;
    SELECT ARRAY[format('jobs[%s] %s', e.n - 1, f.what),
                 CASE WHEN f.name IN ('run_at', 'delay', 'not_after', 'longest_wait') THEN of_texts ELSE of_names END]
      INTO fault
      FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, n)
     CROSS JOIN LATERAL (
         SELECT name,
                CASE WHEN name <> ALL ('{queue,kind,payload,unique_key,run_at,delay,max_attempts,trace_context,lane,
                                         priority,not_after,on_expiry,replace,longest_wait,unique_while_queued,
                                         unique_while_live,tags}')
                     THEN format('has an unknown field, %s', to_json(left(name, 80)))
                     WHEN jsonb_typeof(value) = 'null' OR name = 'payload' THEN NULL
                     WHEN name = 'tags'
                     THEN CASE WHEN jsonb_typeof(value) <> 'array'
                                    OR jsonb_path_exists(value, '$[*] ? (@.type() != "string")')
                               THEN 'has tags that are not an array of strings' END
                     WHEN (name IN ('max_attempts', 'priority')) <> (jsonb_typeof(value) = 'number')
                       OR name NOT IN ('max_attempts', 'priority') AND jsonb_typeof(value) <> 'string'
                     THEN format('has a %s of type %s, but it must be a %s', name, jsonb_typeof(value),
                                 CASE WHEN name IN ('max_attempts', 'priority') THEN 'number' ELSE 'string' END)
                END AS what
           FROM jsonb_each(e.job) AS field(name, value)) f
     WHERE f.what IS NOT NULL
     ORDER BY e.n LIMIT 1;
    RETURN fault;
END $$;

GRANT EXECUTE ON FUNCTION tenure.fault_in_fields(jsonb) TO PUBLIC;
