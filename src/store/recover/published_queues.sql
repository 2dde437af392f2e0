-- published_queues: the queues with jobs that count as published, the last name first; and a snapshot of what is
-- committed, for reclaim_lost.sql.
--
--   $1 queues before this name; NULL: all  $2 row limit
--
-- The index gives one queue after another: the statement enters each queue once, however many jobs it has. It enters at
-- the newest jobs: while workers drain a backlog, its oldest jobs leave dead index entries, tens of thousands a second,
-- each of which would cost a look-up.
WITH RECURSIVE named AS (
    (SELECT queue FROM tenure.jobs
      WHERE $1::text IS NULL AND published_at IS NOT NULL ORDER BY queue DESC, published_at DESC LIMIT 1)
    UNION ALL
    (SELECT queue FROM tenure.jobs
      WHERE published_at IS NOT NULL AND queue < $1 ORDER BY queue DESC, published_at DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT j.queue FROM tenure.jobs j
             WHERE j.published_at IS NOT NULL AND j.queue < named.queue
             ORDER BY j.queue DESC, j.published_at DESC LIMIT 1)
      FROM named WHERE named.queue IS NOT NULL
)
SELECT coalesce(array_agg(queue ORDER BY queue DESC), '{}') AS queues, pg_current_snapshot()::text AS committed
  FROM (SELECT queue FROM named WHERE queue IS NOT NULL LIMIT $2) n
