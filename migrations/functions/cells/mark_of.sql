-- mark_of: the name of the trigger that marks a queue; the queue's own name may be too long for one.
--
-- Called by tenure.mark_queue and forget_mark; lanes name their triggers after it (put_lanes, forget_lanes,
-- sweep_lanes). It reads no table, and so PUBLIC may execute it.
CREATE OR REPLACE FUNCTION tenure.mark_of(queue text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'mark_' || left(encode(sha256(convert_to(queue, 'UTF8')), 'hex'), 16)
$$;

GRANT EXECUTE ON FUNCTION tenure.mark_of(text) TO PUBLIC;
