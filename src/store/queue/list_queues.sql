-- list_queues: every queue that has jobs, submissions, workers or settings, or one of them. Reads the table of live
-- jobs as a whole.
--
--   $1 queue or NULL
--
-- Submissions are those of the last scan; NULL: they were not counted, or too long ago. Those in `standing` count
-- towards max_queued. A worker that drains counts in `draining` alone. A queue whose workers all fell silent within the
-- last day has a row, too. `held`: jobs that their lanes hold; `held_due` of them are due.
WITH jobs AS (
    SELECT queue,
           count(*) FILTER (WHERE status = 'queued' AND scheduled_at <= statement_timestamp()) AS due,
           count(*) FILTER (WHERE status = 'queued' AND scheduled_at > statement_timestamp()
                                                    AND scheduled_at < '9998-01-01 00:00:00+00') AS scheduled,
           count(*) FILTER (WHERE status = 'queued' AND scheduled_at >= '9998-01-01 00:00:00+00') AS held,
           count(*) FILTER (WHERE status = 'queued' AND lane_due_at <= statement_timestamp()) AS held_due,
           count(*) FILTER (WHERE status = 'processing') AS processing,
           min(scheduled_at) FILTER (WHERE status = 'queued' AND scheduled_at <= statement_timestamp()) AS oldest_due_at
      FROM (SELECT j.queue, j.status, j.scheduled_at, w.due_at AS lane_due_at
              FROM tenure.jobs j
              LEFT JOIN tenure.lane_jobs w ON w.job_id = j.id AND j.scheduled_at >= '9998-01-01 00:00:00+00') AS live
     WHERE $1::text IS NULL OR queue = $1
     GROUP BY queue
), workers AS (
    SELECT queue, count(*) FILTER (WHERE is_alive AND draining_at IS NULL) AS workers,
           count(*) FILTER (WHERE is_alive AND draining_at IS NOT NULL) AS draining,
           greatest(0, extract(epoch FROM statement_timestamp() - max(w.last_seen_at)))::float8 AS last_seen_s
      FROM tenure.workers w, unnest(w.queues) AS queue,
           LATERAL (SELECT w.last_seen_at > statement_timestamp() - 3 * w.renew_every AS is_alive) AS alive
     WHERE w.last_seen_at > statement_timestamp() - interval '1 day'
     GROUP BY queue
), dead AS (
    SELECT queue, count(*) AS dead FROM tenure.dead_letter_jobs WHERE $1::text IS NULL OR queue = $1 GROUP BY queue
), names (queue) AS (
    SELECT queue FROM tenure.queues
     UNION
    SELECT queue FROM jobs
     UNION
    SELECT queue FROM tenure.queue_stats WHERE submitted > 0
     UNION
    SELECT queue FROM workers
     UNION
    SELECT queue FROM dead
     UNION
    SELECT queue FROM tenure.lane_settings WHERE removed_at IS NULL
)
SELECT queue, q.paused_at, q.max_running, q.max_queued, q.events,
       coalesce(j.due, 0) AS due, coalesce(j.scheduled, 0) AS scheduled, coalesce(j.processing, 0) AS processing,
       coalesce(j.held, 0) AS held, coalesce(j.held_due, 0) AS held_due,
       o.turns IS NOT NULL AND o.removed_at IS NULL AS has_lanes,
       CASE WHEN t.submitted_until > statement_timestamp() THEN t.submitted
            WHEN t.queue IS NULL AND s.stream_until > statement_timestamp()
             AND s.stream_measured_at = s.measured_at THEN 0 END AS submitted,
       coalesce(CASE WHEN t.standing_until > statement_timestamp() THEN t.standing END, 0) AS standing,
       coalesce(d.dead, 0) AS dead, coalesce(w.workers, 0) AS workers,
       coalesce(w.draining, 0) AS draining, w.last_seen_s,
       extract(epoch FROM statement_timestamp() - least(j.oldest_due_at,
               CASE WHEN t.submitted_until > statement_timestamp() THEN t.oldest_submitted_at END))::float8 AS oldest_due_s
  FROM names
 CROSS JOIN tenure.scanner_state s
  LEFT JOIN tenure.queues q USING (queue)
  LEFT JOIN tenure.lane_settings o USING (queue)
  LEFT JOIN jobs j USING (queue)
  LEFT JOIN tenure.queue_stats t USING (queue)
  LEFT JOIN workers w USING (queue)
  LEFT JOIN dead d USING (queue)
 WHERE $1::text IS NULL OR queue = $1
 ORDER BY queue
