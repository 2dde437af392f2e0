-- doctor_queues: for each queue, whether a worker serves it, whether it is paused, and how many jobs wait in it.
--
--   $1 queues, or NULL for those that a worker serves, in which a job waits, or that have settings
--   $2 with NULL: other queues, in which submissions wait
--
-- One row a queue. A worker that drains serves none. The index gives the queues that have jobs, one step a queue.
-- Counts at most 1,000 jobs of a queue that are published and due.
WITH RECURSIVE filled (queue) AS (
    (SELECT queue FROM tenure.jobs WHERE published_at IS NOT NULL ORDER BY queue LIMIT 1)
     UNION ALL
    SELECT (SELECT j.queue FROM tenure.jobs j
             WHERE j.published_at IS NOT NULL AND j.queue > filled.queue
             ORDER BY j.queue LIMIT 1)
      FROM filled
     WHERE filled.queue IS NOT NULL
), served (queue) AS (
    SELECT DISTINCT unnest(queues) FROM tenure.workers
     WHERE last_seen_at >= statement_timestamp() - 3 * renew_every AND draining_at IS NULL
), names (queue) AS (
    SELECT unnest($1::text[])
     UNION
    SELECT queue FROM filled WHERE $1::text[] IS NULL AND queue IS NOT NULL
     UNION
    SELECT queue FROM served WHERE $1::text[] IS NULL
     UNION
    SELECT queue FROM tenure.queues WHERE $1::text[] IS NULL
     UNION
    SELECT unnest($2::text[]) WHERE $1::text[] IS NULL
)
SELECT n.queue,
       EXISTS (SELECT FROM served WHERE served.queue = n.queue) AS is_served,
       (SELECT count(*) FROM tenure.workers w
         WHERE w.queues @> ARRAY[n.queue] AND w.draining_at IS NOT NULL
           AND w.last_seen_at >= statement_timestamp() - 3 * w.renew_every) AS draining,
       extract(epoch FROM statement_timestamp() - q.paused_at)::float8 AS paused_s,
       q.max_running, q.max_queued,
       CASE WHEN q.max_running IS NOT NULL THEN
            (SELECT count(*) FILTER (WHERE (SELECT j.status = 'processing' AND j.fencing_token = s.fencing_token
                                              FROM tenure.jobs j WHERE j.id = s.job_id))
               FROM tenure.queue_slots s WHERE s.queue = n.queue)
       END AS running,
       -- At most `max_queued`.
       CASE WHEN q.max_queued IS NOT NULL THEN
            (SELECT count(*) FROM (SELECT FROM tenure.jobs j
                                    WHERE j.queue = n.queue AND j.status = 'queued' LIMIT q.max_queued) AS full_or_not)
       END AS queued,
       coalesce((SELECT s.standing FROM tenure.queue_stats s
                  WHERE s.queue = n.queue AND s.standing_until > statement_timestamp()), 0) AS standing,
       waiting.jobs AS waiting,
       extract(epoch FROM statement_timestamp() - waiting.oldest)::float8 AS waiting_s
  FROM names n
  LEFT JOIN tenure.queues q ON q.queue = n.queue
 CROSS JOIN LATERAL (
       SELECT count(*) AS jobs, min(scheduled_at) AS oldest
         FROM (SELECT j.scheduled_at FROM tenure.jobs j
                WHERE j.queue = n.queue AND j.published_at IS NOT NULL
                  AND j.status = 'queued' AND j.scheduled_at <= statement_timestamp()
                ORDER BY j.published_at LIMIT 1000) AS due) AS waiting
 ORDER BY n.queue
