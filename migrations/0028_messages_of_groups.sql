-- Jobs of a group that become due together may share messages, where the workers of their queue run many jobs at once.

-- For each of `queues`, how many jobs one message may name. NULL: a worker of an earlier release, which may not read such a
-- message, or one behind a gateway.
ALTER TABLE tenure.workers ADD COLUMN jobs_per_message int[];

-- For each of these queues, its live workers, and how many jobs one message may name: what each of its workers can take,
-- those included that may come back. 1: also of a queue without a live worker, and of one with a limit, whose jobs may have
-- to wait for each other.
CREATE FUNCTION tenure.jobs_per_message(of_queues text[]) RETURNS TABLE (queue text, workers bigint, jobs int)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT q.name, l.workers,
           CASE WHEN l.workers = 0 OR EXISTS (SELECT FROM tenure.queues s WHERE s.queue = q.name AND s.max_running IS NOT NULL)
                THEN 1 ELSE l.jobs END
      FROM (SELECT DISTINCT name FROM unnest(of_queues) AS n (name)) q
     CROSS JOIN LATERAL (
           SELECT count(*) FILTER (WHERE w.last_seen_at > statement_timestamp() - 3 * w.renew_every) AS workers,
                  min(coalesce(w.jobs_per_message[array_position(w.queues, q.name)], 1)) AS jobs
             FROM tenure.workers w
            WHERE q.name = ANY (w.queues) AND w.last_seen_at > statement_timestamp() - interval '10 minutes') l
$$;
REVOKE ALL ON FUNCTION tenure.jobs_per_message(text[]) FROM PUBLIC;
-- A role that may enqueue groups may ask.
CREATE FUNCTION tenure.pass_rights_to_ask() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of record;
BEGIN
    FOR of IN
        SELECT a.grantee::regrole::text AS role
          FROM pg_proc p, aclexplode(p.proacl) a
         WHERE p.oid = 'tenure.link_jobs(uuid[], uuid[], uuid)'::regprocedure AND a.grantee NOT IN (0, p.proowner)
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION tenure.jobs_per_message(text[]) TO %s', of.role);
    END LOOP;
END $$;
SELECT tenure.pass_rights_to_ask();
DROP FUNCTION tenure.pass_rights_to_ask();
