-- list_queues: every queue that has jobs, workers or settings. Reads the table of live jobs as a whole.
WITH jobs AS (
    SELECT queue,
           count(*) FILTER (WHERE status = 'queued' AND scheduled_at <= statement_timestamp()) AS due,
           count(*) FILTER (WHERE status = 'queued' AND scheduled_at > statement_timestamp()) AS scheduled,
           count(*) FILTER (WHERE status = 'processing') AS processing,
           min(scheduled_at) FILTER (WHERE status = 'queued' AND scheduled_at <= statement_timestamp()) AS oldest_due_at
      FROM tenure.jobs
     GROUP BY queue
), workers AS (
    SELECT queue, count(*) AS workers
      FROM tenure.workers, unnest(queues) AS queue
     WHERE last_seen_at > statement_timestamp() - 3 * renew_every
     GROUP BY queue
), dead AS (
    SELECT queue, count(*) AS dead FROM tenure.dead_letter_jobs GROUP BY queue
)
SELECT queue, q.paused_at, q.max_running, q.max_queued,
       coalesce(j.due, 0) AS due, coalesce(j.scheduled, 0) AS scheduled, coalesce(j.processing, 0) AS processing,
       coalesce(d.dead, 0) AS dead, coalesce(w.workers, 0) AS workers,
       extract(epoch FROM statement_timestamp() - j.oldest_due_at)::float8 AS oldest_due_s
  FROM tenure.queues q
  FULL JOIN jobs j USING (queue)
  FULL JOIN workers w USING (queue)
  FULL JOIN dead d USING (queue)
 ORDER BY queue
