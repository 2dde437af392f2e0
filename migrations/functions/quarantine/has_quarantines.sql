-- has_quarantines: whether a kind is watched, or was until a minute ago, when its jobs may still have to be called.
--
-- Called by take_turns.sql, with every look of a worker at its turns, and by fleet.sql.
-- SECURITY DEFINER, and PUBLIC may execute it: a worker of a role that has not heard of these tables yet asks, too, and
-- learns nothing but this.
CREATE OR REPLACE FUNCTION tenure.has_quarantines() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (SELECT FROM tenure.quarantines
                WHERE removed_at IS NULL OR removed_at > statement_timestamp() - interval '1 minute')
$$;

GRANT EXECUTE ON FUNCTION tenure.has_quarantines() TO PUBLIC;
