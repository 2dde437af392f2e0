-- doctor_workers: every registered process, whether it is silent, how many jobs a silent one owns, and what keeps one
-- from taking jobs, or that it drains.
--
-- One row a process. Silent: it has missed three renewals of its row. Reads the jobs only if a process is silent.
WITH known AS MATERIALIZED (
    SELECT worker_id, version, language, last_seen_at, started_at, not_ready, draining_at IS NOT NULL AS is_draining,
           last_seen_at < statement_timestamp() - 3 * renew_every AS is_silent
      FROM tenure.workers
), owned AS (
    SELECT j.worker_id, count(*) AS jobs
      FROM tenure.jobs j
     WHERE j.status = 'processing'
       AND EXISTS (SELECT FROM known WHERE is_silent)
       AND j.worker_id IN (SELECT worker_id FROM known WHERE is_silent)
     GROUP BY j.worker_id
)
SELECT k.worker_id, k.version, k.language, k.is_silent, k.not_ready, k.is_draining,
       extract(epoch FROM statement_timestamp() - k.last_seen_at)::float8 AS silence_s,
       extract(epoch FROM statement_timestamp() - k.started_at)::float8 AS started_s,
       coalesce(o.jobs, 0) AS jobs
  FROM known k
  LEFT JOIN owned o USING (worker_id)
 ORDER BY k.last_seen_at, k.worker_id
