-- Says what is wrong with a job: a message, and a hint. NULL: nothing.
--
-- Called by `enqueue` and `enqueue_many`, and by `signal` for a payload. It only computes, and PUBLIC may execute it.
-- A payload that no worker can read is refused; only one that has as many brackets or digits is looked through for it.
-- The setting `tenure.payload_bytes_max` bounds the payload (docs/sql.md).
CREATE OR REPLACE FUNCTION tenure.fault_in_job(queue text, kind text, payload jsonb, unique_key text,
                                               run_at timestamptz, delay interval, max_attempts numeric) RETURNS text[]
LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ahead    CONSTANT interval := interval '3650 days';
    written  CONSTANT text := payload::text;
    most     text := coalesce(nullif(current_setting('tenure.payload_bytes_max', true), ''), '262144');
    of_limit CONSTANT text := 'Store the payload elsewhere and enqueue a reference, or raise the limit: '
                              'ALTER DATABASE … SET tenure.payload_bytes_max = … (a number of bytes).';
BEGIN
    IF queue IS NULL OR queue COLLATE "C" !~ '^[A-Za-z0-9_-]{1,64}$' THEN
        RETURN ARRAY[format('queue %s is not a valid name: it must be 1 to 64 of A-Z a-z 0-9 _ -',
                            coalesce(to_json(left(queue, 80))::text, 'NULL')),
                     'Pass the name of a queue, as a worker is told it.'];
    ELSIF kind IS NULL OR length(kind) > 200
          OR kind COLLATE "C" !~ '^[A-Za-z0-9_-]{1,64}([.][A-Za-z0-9_-]{1,64})*$' THEN
        RETURN ARRAY[format('kind %s is not a valid name: it must be 1 to 64 of A-Z a-z 0-9 _ -, or several such parts '
                            'joined by dots, 200 characters in all', coalesce(to_json(left(kind, 80))::text, 'NULL')),
                     'Pass the name by which a worker knows its handler.'];
    ELSIF most !~ '^[0-9]{1,10}$' THEN
        RETURN ARRAY[format('the setting tenure.payload_bytes_max is %s, but must be a number of bytes', to_json(most)),
                     'Write it without a unit, as in 1048576.'];
    ELSIF octet_length(written) > most::bigint THEN
        RETURN ARRAY[format('the payload has %s bytes, but at most %s are allowed', octet_length(written), most),
                     of_limit];
    ELSIF octet_length(written) > 254 AND length(written) - length(translate(written, '[{', '')) > 127
          AND jsonb_path_exists(payload, 'strict $.**{127} ? (@.type() == "array" || @.type() == "object")') THEN
        RETURN ARRAY['the payload has more than 127 levels, which no worker can read',
                     'Make it flatter, or put the inner part in as a text of JSON.'];
    ELSIF octet_length(written) > 308 AND written ~ '[0-9]{255}[0-9]{54}'
          AND jsonb_path_exists(payload, 'strict $.** ? (@.type() == "number" && (@ > 1.7976931348623157e308 || '
                                         '@ < -1.7976931348623157e308))') THEN
        RETURN ARRAY['the payload has a number beyond 1.8e308, which no worker can read',
                     'Write such a number as text.'];
    ELSIF max_attempts NOT BETWEEN 1 AND 1000 OR max_attempts <> trunc(max_attempts) THEN
        RETURN ARRAY[format('max_attempts is %s, but must be a whole number from 1 to 1000', max_attempts),
                     'Leave it out for the default, 5.'];
    ELSIF run_at IS NOT NULL AND delay IS NOT NULL THEN
        RETURN ARRAY['run_at and delay are both given, but a job has at most one of them', 'Leave one of them out.'];
    ELSIF delay < interval '0' OR delay > ahead THEN
        RETURN ARRAY[format('delay is %s, but must be from 0 to ten years', delay), 'For a fixed time, pass run_at.'];
    ELSIF NOT isfinite(run_at) OR run_at > statement_timestamp() + ahead THEN
        RETURN ARRAY[format('run_at is %s, but must be at most ten years ahead', run_at),
                     'A time that has passed is allowed, and means at once.'];
    ELSIF NOT tenure.is_key(unique_key) THEN
        RETURN ARRAY[format('unique_key is %s (%s bytes), but must have 1 to 512 bytes and no control characters',
                            to_json(left(unique_key, 80)), octet_length(unique_key)),
                     'Hash a longer key, and escape other characters; leave it out for a job without one.'];
    END IF;
    RETURN NULL;
END $$;

GRANT EXECUTE ON FUNCTION tenure.fault_in_job(text, text, jsonb, text, timestamptz, interval, numeric) TO PUBLIC;
