-- list_workers: every registered worker process, the latest started first. Reads the table of live jobs as a whole.
--
-- Vanishing: no process answered for it over NATS. Silent: it has missed three renewals of its row. Draining: it
-- finishes its jobs, and takes no other.
WITH running AS (
    SELECT worker_id, count(*) AS jobs FROM tenure.jobs WHERE worker_id IS NOT NULL GROUP BY worker_id
)
SELECT w.worker_id, w.hostname, w.pid, w.language, w.version,
       ARRAY(SELECT queue FROM unnest(w.queues) AS queue ORDER BY queue) AS queues, w.kinds,
       w.unkept, w.slots, coalesce(r.jobs, 0) AS running,
       w.started_at, w.last_seen_at, w.probe_subject, w.not_ready, w.draining_at,
       greatest(0, extract(epoch FROM statement_timestamp() - w.last_seen_at))::float8 AS last_seen_s,
       CASE WHEN w.suspected_at IS NOT NULL THEN 'vanishing'
            WHEN w.last_seen_at < statement_timestamp() - 3 * w.renew_every THEN 'silent'
            WHEN w.draining_at IS NOT NULL THEN 'draining'
            ELSE 'alive'
       END AS state
  FROM tenure.workers w
  LEFT JOIN running r USING (worker_id)
 ORDER BY w.started_at DESC, w.worker_id
