-- once_result: returns the stored result of an effect: JSON null if none was stored, NULL if the effect has not
-- happened.
--
-- Called by programs that run a job (docs/sql.md), with their rights: postgres/roles.sql grants it to workers. It takes
-- no lock and checks no fence: what is stored is committed, or of the caller's own transaction.
CREATE OR REPLACE FUNCTION tenure.once_result(job uuid, key text) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    -- VOLATILE: in one statement with `once` it sees what that has waited for.
    RETURN (SELECT e.result FROM tenure.effects e WHERE e.job_id = once_result.job AND e.key = once_result.key);
END $$;

REVOKE ALL ON FUNCTION tenure.once_result(uuid, text) FROM PUBLIC;

COMMENT ON FUNCTION tenure.once_result(uuid, text) IS
'Returns the stored result of an effect: JSON null if none was stored, NULL if the effect has not happened.';
