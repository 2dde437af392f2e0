-- Refuses JSON that is many times longer as text than it was as it came: each reader gets the text. An output has no
-- other limit; the library's check is job::sizes::grows.
--
-- `complete` and `once_store` call it, with their caller's rights.
CREATE OR REPLACE FUNCTION tenure.check_growth(what text, value jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- Of the plain value: one from a table may be compressed.
    bytes CONSTANT int := pg_column_size(value #> '{}');
    text_bytes int;
BEGIN
    -- A number has at most 16 KB of digits, in 8 bytes.
    IF bytes < 500 THEN
        RETURN;
    END IF;
    text_bytes := octet_length(value::text);
    IF text_bytes > 4 * bytes + 1048576 THEN
        RAISE EXCEPTION '% has % bytes, but % as text, with each digit of its numbers', what, bytes, text_bytes
            USING ERRCODE = 'TN003', HINT = 'Write such numbers as text.';
    END IF;
END $$;

GRANT EXECUTE ON FUNCTION tenure.check_growth(text, jsonb) TO PUBLIC;
