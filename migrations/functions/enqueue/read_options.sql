-- Reads the options that few jobs have from the jobs that `enqueue_many` gets, in order: `options` as `create_jobs`
-- wants them, and of a wrong one what is wrong, and a hint. A text that is no time or no interval raises an error of
-- class 22.
--
-- Called by `enqueue_many`. It only computes, and PUBLIC may execute it.
CREATE OR REPLACE FUNCTION tenure.read_options(jobs jsonb, OUT options jsonb[], OUT faults text[], OUT hints text[])
LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT array_agg(CASE WHEN cardinality(o.tags) > 0
                          THEN coalesce(r.options, '{}') || jsonb_build_object('tags', o.tags)
                          ELSE r.options END ORDER BY e.n),
           array_agg(r.fault[1] ORDER BY e.n), array_agg(r.fault[2] ORDER BY e.n)
      INTO options, faults, hints
      FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, n)
     CROSS JOIN LATERAL jsonb_to_record(e.job)
           AS o(unique_key text, delay interval, lane text, priority numeric, not_after timestamptz, on_expiry text,
                replace text, longest_wait interval, unique_while_queued text, unique_while_live text, tags text[])
     CROSS JOIN LATERAL (
         SELECT tenure.options_of(o.delay, o.lane, o.priority, o.not_after, o.on_expiry, o.replace, o.longest_wait,
                                  o.unique_while_queued, o.unique_while_live) AS options,
                coalesce(tenure.fault_in_options(o.unique_key, o.delay, o.lane, o.priority, o.not_after, o.on_expiry,
                                                 o.replace, o.longest_wait, o.unique_while_queued,
                                                 o.unique_while_live),
                         tenure.fault_in_tags(o.tags)) AS fault
         OFFSET 0) r;
END $$;

GRANT EXECUTE ON FUNCTION tenure.read_options(jsonb) TO PUBLIC;
