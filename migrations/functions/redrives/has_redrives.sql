-- Says whether a redrive is open.
--
-- Every worker asks with its turns (src/store/recover/take_turns.sql), and PUBLIC may execute it.
-- SECURITY DEFINER: also a worker whose role may not read the table asks.
CREATE OR REPLACE FUNCTION tenure.has_redrives() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (SELECT FROM tenure.redrives WHERE ended_at IS NULL)
$$;

GRANT EXECUTE ON FUNCTION tenure.has_redrives() TO PUBLIC;
