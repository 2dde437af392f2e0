-- Says what is wrong with the options that few jobs have, but for the tags: a message, and a hint. NULL: nothing.
--
-- Called by `enqueue` and `read_options`. It only computes, and PUBLIC may execute it.
CREATE OR REPLACE FUNCTION tenure.fault_in_options(unique_key text, delay interval, lane text, priority numeric,
                                                   not_after timestamptz, on_expiry text, replace text,
                                                   longest_wait interval, unique_while_queued text,
                                                   unique_while_live text) RETURNS text[]
LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ahead CONSTANT interval := interval '3650 days';
    keys  text[];
    bad   record;
BEGIN
    IF lane = '' OR octet_length(lane) > 256 OR NOT tenure.is_key(lane) THEN
        RETURN ARRAY[format('lane is %s (%s bytes), but must have 1 to 256 bytes and no control characters',
                            to_json(left(lane, 80)), octet_length(lane)),
                     'Hash a longer key, and escape other characters; leave it out for a job without a lane.'];
    ELSIF priority NOT BETWEEN -100 AND 100 OR priority <> trunc(priority) THEN
        RETURN ARRAY[format('priority is %s, but must be a whole number from -100 to 100', priority),
                     'The lower, the sooner within its lane; leave it out for 0.'];
    ELSIF NOT isfinite(not_after) OR not_after > statement_timestamp() + ahead THEN
        RETURN ARRAY[format('not_after is %s, but must be at most ten years ahead', not_after),
                     'Leave it out for a job that does not expire.'];
    ELSIF on_expiry NOT IN ('dead_letter', 'cancel') THEN
        RETURN ARRAY[format('on_expiry is %s, but must be dead_letter or cancel', to_json(left(on_expiry, 80))),
                     'It says what becomes of a job that was not started by not_after; without it, a dead letter.'];
    ELSIF false = ANY (ARRAY[tenure.is_key(replace), tenure.is_key(unique_while_queued),
                             tenure.is_key(unique_while_live)]) THEN
        SELECT k.name, k.key, octet_length(k.key) AS bytes INTO bad
          FROM unnest('{replace,unique_while_queued,unique_while_live}'::text[],
                      ARRAY[replace, unique_while_queued, unique_while_live]) AS k(name, key)
         WHERE NOT tenure.is_key(k.key)
         LIMIT 1;
        RETURN ARRAY[format('%s is %s (%s bytes), but must have 1 to 512 bytes and no control characters', bad.name,
                            to_json(left(bad.key, 80)), bad.bytes),
                     'Hash a longer key, and escape other characters; leave it out for a job without one.'];
    ELSIF num_nonnulls(unique_key, replace, unique_while_queued, unique_while_live) > 1 THEN
        SELECT array_agg(k.name ORDER BY k.n) INTO keys
          FROM unnest('{unique_key,replace,unique_while_queued,unique_while_live}'::text[],
                      ARRAY[unique_key, replace, unique_while_queued, unique_while_live])
               WITH ORDINALITY AS k(name, key, n)
         WHERE k.key IS NOT NULL;
        RETURN ARRAY[format('%s and %s are both given, but a job has at most one key', keys[1], keys[2]),
                     'Leave one of them out.'];
    ELSIF longest_wait IS NOT NULL AND replace IS NULL THEN
        RETURN ARRAY[format('longest_wait is %s, but must be left out without replace', longest_wait),
                     'It bounds how long replace may move a job on.'];
    ELSIF longest_wait < coalesce(delay, interval '0') OR longest_wait < interval '0' OR longest_wait > ahead THEN
        RETURN ARRAY[format('longest_wait is %s, but must be at least the delay, and at most ten years', longest_wait),
                     'Leave it out for ten times the delay.'];
    END IF;
    RETURN NULL;
END $$;

GRANT EXECUTE ON FUNCTION tenure.fault_in_options(text, interval, text, numeric, timestamptz, text, text, interval,
                                                text, text) TO PUBLIC;
