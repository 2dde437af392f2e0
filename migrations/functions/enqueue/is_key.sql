-- Says whether a text may be a key: of a job, a lane, an effect, an event. NULL for NULL.
--
-- Called by fault_in_job, fault_in_options, fault_in_tags, once and signal. It only computes, and PUBLIC may
-- execute it.
CREATE OR REPLACE FUNCTION tenure.is_key(key text) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT octet_length(key) BETWEEN 1 AND 512
           AND key !~ ('[' || chr(1) || '-' || chr(31) || chr(127) || '-' || chr(159) || ']')
$$;

GRANT EXECUTE ON FUNCTION tenure.is_key(text) TO PUBLIC;
