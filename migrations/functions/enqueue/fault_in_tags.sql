-- Says what is wrong with the tags of a job: a message, and a hint. NULL: nothing.
--
-- Called by `enqueue` and `read_options`. It only computes, and PUBLIC may execute it.
CREATE OR REPLACE FUNCTION tenure.fault_in_tags(tags text[]) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tag text;
BEGIN
    IF cardinality(tags) > 16 THEN
        RETURN ARRAY[format('tags has %s tags, but a job has at most 16', cardinality(tags)),
                     'Leave some of them out, or put what you do not search for into the payload.'];
    END IF;
    FOREACH tag IN ARRAY coalesce(tags, '{}') LOOP
        IF (octet_length(tag) BETWEEN 1 AND 100 AND tenure.is_key(tag) AND tag !~ '[ ,]') IS NOT TRUE THEN
            RETURN ARRAY[format('a tag is %s (%s bytes), but must have 1 to 100 bytes without spaces, commas and '
                                'control characters', coalesce(to_json(left(tag, 80))::text, 'NULL'),
                                coalesce(octet_length(tag), 0)),
                         'Write a word, or key=value, such as customer=7.'];
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

GRANT EXECUTE ON FUNCTION tenure.fault_in_tags(text[]) TO PUBLIC;
