-- Returns for each of these queues its live workers, and how many jobs one message may name: what each of its workers
-- can take, also one that was silent for up to ten minutes and may come back. jobs is 1 for a queue without a live
-- worker, for one with a worker that does not say what it can take (of an earlier release, or behind a gateway), and
-- for one with a limit, whose jobs may have to wait for each other.
--
-- src/store/queue/jobs_per_message.sql calls it before messages are published. The answer is a hint: a worker without
-- room hands jobs back.
-- SECURITY DEFINER: a producer may not read the workers and the limits. It learns how many workers a queue has.
CREATE OR REPLACE FUNCTION tenure.jobs_per_message(of_queues text[])
RETURNS TABLE (queue text, workers bigint, jobs int)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT q.name, l.workers,
           CASE WHEN l.workers = 0
                  OR EXISTS (SELECT FROM tenure.queues s WHERE s.queue = q.name AND s.max_running IS NOT NULL)
                THEN 1 ELSE l.jobs END
      FROM (SELECT DISTINCT name FROM unnest(of_queues) AS n (name)) q
     CROSS JOIN LATERAL (
           SELECT count(*) FILTER (WHERE w.last_seen_at > statement_timestamp() - 3 * w.renew_every) AS workers,
                  min(coalesce(w.jobs_per_message[array_position(w.queues, q.name)], 1)) AS jobs
             FROM tenure.workers w
            WHERE q.name = ANY (w.queues) AND w.last_seen_at > statement_timestamp() - interval '10 minutes') l
$$;

REVOKE ALL ON FUNCTION tenure.jobs_per_message(text[]) FROM PUBLIC;
