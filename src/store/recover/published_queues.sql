-- published_queues: the queues of which jobs count as published, the last name first; and what is committed, for
-- reclaim_lost.sql.
--
--   $1 queues before this name; NULL: all  $2 row limit
--
-- The queues are found one after another by their index: however many jobs a queue has, it is entered once. And each is
-- entered where its newest jobs are: where a backlog is worked off, its oldest have left nothing but index entries, tens
-- of thousands a second, each of which would be looked up.
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
