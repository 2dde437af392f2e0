-- Logs of jobs: the end of what an attempt has printed, beside its job, for workers that keep it.

-- A row for each of the last three attempts that have printed something.
CREATE TABLE tenure.job_logs (
    job_id        uuid        NOT NULL,
    fencing_token bigint      NOT NULL,
    text          text        NOT NULL,
    is_cut        boolean     NOT NULL,                      -- an earlier part is missing
    written_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job_id, fencing_token)
);

-- The roles that purge dead letters delete their logs, before postgres/roles.sql is run again, too.
CREATE FUNCTION tenure.pass_rights_to_logs() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of record;
BEGIN
    FOR of IN
        SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role
          FROM pg_class c, aclexplode(c.relacl) a
         WHERE c.oid = 'tenure.dead_letter_jobs'::regclass AND a.privilege_type = 'DELETE' AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('GRANT SELECT, DELETE ON tenure.job_logs TO %s', of.role);
    END LOOP;
END $$;
SELECT tenure.pass_rights_to_logs();
DROP FUNCTION tenure.pass_rights_to_logs();

-- As before, and the logs.
CREATE OR REPLACE FUNCTION tenure.purge_traces(after uuid, step int) RETURNS TABLE (gone bigint, last uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    WITH horizon AS (
        SELECT tenure.id_of_time(purged_until) AS id FROM tenure.scanner_state
    ), traced AS MATERIALIZED (
        SELECT t.job_id
          FROM (SELECT DISTINCT e.job_id FROM (
                    SELECT x.job_id FROM tenure.job_executions x
                     WHERE x.job_id > after AND x.job_id < (SELECT id FROM horizon) ORDER BY x.job_id LIMIT step) e
                UNION
                SELECT DISTINCT f.job_id FROM (
                    SELECT x.job_id FROM tenure.effects x
                     WHERE x.job_id > after AND x.job_id < (SELECT id FROM horizon) ORDER BY x.job_id LIMIT step) f
                UNION
                SELECT DISTINCT g.job_id FROM (
                    SELECT x.job_id FROM tenure.job_tags x
                     WHERE x.job_id > after AND x.job_id < (SELECT id FROM horizon) ORDER BY x.job_id LIMIT step) g
                UNION
                SELECT DISTINCT l.job_id FROM (
                    SELECT x.job_id FROM tenure.job_logs x
                     WHERE x.job_id > after AND x.job_id < (SELECT id FROM horizon) ORDER BY x.job_id LIMIT step) l) t
         ORDER BY t.job_id LIMIT step
    ), orphans AS MATERIALIZED (
        SELECT t.job_id FROM traced t
         WHERE NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = t.job_id)
           AND NOT EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = t.job_id)
           AND NOT EXISTS (SELECT FROM tenure.job_history h WHERE h.id = t.job_id)
    ), attempts AS (
        DELETE FROM tenure.job_executions x USING orphans o WHERE x.job_id = o.job_id
    ), effects AS (
        DELETE FROM tenure.effects x USING orphans o WHERE x.job_id = o.job_id
    ), tags AS (
        DELETE FROM tenure.job_tags x USING orphans o WHERE x.job_id = o.job_id
    ), logs AS (
        DELETE FROM tenure.job_logs x USING orphans o WHERE x.job_id = o.job_id
    )
    SELECT (SELECT count(*) FROM orphans), (SELECT t.job_id FROM traced t ORDER BY t.job_id DESC LIMIT 1);
END $$;

CREATE OR REPLACE FUNCTION tenure.forget_traces(job uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM tenure.jobs j WHERE j.id = job)
       OR EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = job)
       OR EXISTS (SELECT FROM tenure.job_history h WHERE h.id = job)
    THEN
        RETURN;
    END IF;
    DELETE FROM tenure.job_executions e WHERE e.job_id = job;
    DELETE FROM tenure.effects e WHERE e.job_id = job;
    DELETE FROM tenure.job_tags t WHERE t.job_id = job;
    DELETE FROM tenure.job_logs l WHERE l.job_id = job;
END $$;
