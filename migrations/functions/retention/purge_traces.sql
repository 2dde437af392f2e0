-- purge_traces: deletes the attempts, effects, tags and logs of jobs that are gone, of the `step` jobs after the id
-- `after` that have any. Returns of how many jobs, and the last job that it has looked at; NULL: it has come to the
-- end.
--
-- Called by purge_traces.sql, of a worker's sweep, again and again with the last answer.
-- SECURITY DEFINER: a worker may not delete what has happened; no trace goes while its job stands anywhere.
-- It looks at jobs before scanner_state.purged_until alone: retention can have removed no other. A job that it finds
-- gone cannot come back: ids are never used again, and a dead letter's row goes in the transaction that redrives it.
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

REVOKE ALL ON FUNCTION tenure.purge_traces(uuid, int) FROM PUBLIC;
