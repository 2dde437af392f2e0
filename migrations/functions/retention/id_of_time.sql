-- id_of_time: the least id of a moment: ids are UUID v7, which begin with the milliseconds since 1970. NULL for NULL.
--
-- Called by purge_keys, purge_rows, purge_traces, schedule_jobs.sql, finished_kinds.sql and
-- verify.sql, to read by id what is older or younger than a moment.
-- It reads no table, and so PUBLIC may execute it. No SET clause: the planner can put the expression in the
-- call's place.
CREATE OR REPLACE FUNCTION tenure.id_of_time(moment timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT rpad(lpad(to_hex(greatest(0, floor(extract(epoch FROM moment) * 1000))::bigint), 12, '0'), 32, '0')::uuid
$$;

GRANT EXECUTE ON FUNCTION tenure.id_of_time(timestamptz) TO PUBLIC;
