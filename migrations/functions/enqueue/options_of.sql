-- Writes the options that few jobs have, but for the tags, as `create_jobs` wants them, and as the library has them.
-- NULL: none is given.
--
-- Called by `enqueue` and `read_options`. It only computes, and PUBLIC may execute it.
CREATE OR REPLACE FUNCTION tenure.options_of(delay interval, lane text, priority numeric, not_after timestamptz,
                                             on_expiry text, replace text, longest_wait interval,
                                             unique_while_queued text, unique_while_live text) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT nullif(jsonb_strip_nulls(jsonb_build_object(
        'lane', lane, 'priority', priority, 'not_after', extract(epoch FROM not_after),
        'expires_as', CASE on_expiry WHEN 'cancel' THEN 'cancelled' END,
        'key_while', CASE WHEN replace IS NOT NULL THEN 'replace'
                          WHEN unique_while_queued IS NOT NULL THEN 'queued'
                          WHEN unique_while_live IS NOT NULL THEN 'live' END,
        'lasting_key', coalesce(replace, unique_while_queued, unique_while_live),
        'longest_s', CASE WHEN replace IS NOT NULL THEN extract(epoch FROM coalesce(longest_wait, delay * 10)) END
        )), '{}')
$$;

GRANT EXECUTE ON FUNCTION tenure.options_of(interval, text, numeric, timestamptz, text, text, interval, text,
                                          text) TO PUBLIC;
