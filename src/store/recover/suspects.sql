-- suspects: queues in which a due job has counted as published for some time, though no worker has claimed it. Its
-- message may wait behind others, or be lost.
--
--   $1 seconds  $2 queues before this name; NULL: all  $3 row limit
--
-- The last row has what is committed, for reclaim_lost.sql.
--
-- The queues are found one after another by their index, the last one first: however many jobs a queue has, it is
-- entered once. And each is entered where its newest jobs are: where a backlog is worked off, its oldest have left
-- nothing but index entries, tens of thousands a second, each of which would be looked up.
WITH RECURSIVE named AS (
    (SELECT queue FROM tenure.jobs
      WHERE $2::text IS NULL AND published_at IS NOT NULL ORDER BY queue DESC, published_at DESC LIMIT 1)
    UNION ALL
    (SELECT queue FROM tenure.jobs
      WHERE published_at IS NOT NULL AND queue < $2 ORDER BY queue DESC, published_at DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT j.queue FROM tenure.jobs j
             WHERE j.published_at IS NOT NULL AND j.queue < named.queue
             ORDER BY j.queue DESC, j.published_at DESC LIMIT 1)
      FROM named WHERE named.queue IS NOT NULL
)
(SELECT named.queue,
       coalesce((SELECT q.paused_at IS NOT NULL FROM tenure.queues q WHERE q.queue = named.queue), false) AS paused,
       NULL::text AS committed
  FROM named
 WHERE named.queue IS NOT NULL
   -- Mostly the newest of the jobs that were published so long ago waits, or none of them does. Asked for nothing else, it is found by its index; with the rest
   -- of the condition, all of a queue's jobs may be read and sorted for the one.
   AND (coalesce((SELECT j.status = 'queued' AND j.scheduled_at <= statement_timestamp()
                    FROM tenure.jobs j
                   WHERE j.queue = named.queue
                     AND j.published_at < statement_timestamp() - $1::float8 * interval '1 second'
                   ORDER BY j.queue DESC, j.published_at DESC LIMIT 1), false)
     OR coalesce((SELECT true
                    FROM tenure.jobs j
                   WHERE j.queue = named.queue
                     AND j.published_at < statement_timestamp() - $1::float8 * interval '1 second'
                     AND j.status = 'queued' AND j.scheduled_at <= statement_timestamp()
                   ORDER BY j.queue, j.published_at LIMIT 1), false))
 LIMIT $3)
UNION ALL
SELECT NULL, NULL, pg_current_snapshot()::text
