-- Returns a W3C traceparent as the library passes it on, or NULL if it is not valid.
--
-- Called by `enqueue` and `enqueue_many`. It only computes, and PUBLIC may execute it.
CREATE OR REPLACE FUNCTION tenure.valid_traceparent(traceparent text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT '00-' || part[2] || '-' || part[3] || '-' || part[4]
      FROM regexp_match(trim(traceparent), '^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$') AS part
     WHERE part[1] <> 'ff' AND (part[1] <> '00' OR part[5] IS NULL)
       AND part[2] <> repeat('0', 32) AND part[3] <> repeat('0', 16)
$$;

GRANT EXECUTE ON FUNCTION tenure.valid_traceparent(text) TO PUBLIC;
