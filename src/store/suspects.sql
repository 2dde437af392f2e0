-- suspects: queues in which a due job has counted as published for some time, though no worker has claimed it. Its
-- message may wait behind others, or be lost.
--
--   $1 seconds  $2 queues after this name  $3 row limit
--
-- The queues are found one after another by their index: however many jobs a queue has, it is entered once.
WITH RECURSIVE named AS (
    (SELECT queue FROM tenure.jobs
      WHERE published_at IS NOT NULL AND queue > $2 ORDER BY queue, published_at LIMIT 1)
    UNION ALL
    SELECT (SELECT j.queue FROM tenure.jobs j
             WHERE j.published_at IS NOT NULL AND j.queue > named.queue ORDER BY j.queue, j.published_at LIMIT 1)
      FROM named WHERE named.queue IS NOT NULL
)
SELECT named.queue,
       coalesce((SELECT q.paused_at IS NOT NULL FROM tenure.queues q WHERE q.queue = named.queue), false) AS paused,
       coalesce((SELECT q.max_running IS NOT NULL FROM tenure.queues q WHERE q.queue = named.queue), false) AS limited
  FROM named
 CROSS JOIN LATERAL (
       -- The order is that of the index, or all jobs could be read once for each queue.
       SELECT FROM tenure.jobs j
        WHERE j.queue = named.queue
          AND j.published_at < statement_timestamp() - $1::float8 * interval '1 second'
          AND j.status = 'queued' AND j.scheduled_at <= statement_timestamp()
        ORDER BY j.queue, j.published_at LIMIT 1) late
 WHERE named.queue IS NOT NULL
 LIMIT $3
