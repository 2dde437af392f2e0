-- count_queued: how many jobs of a queue wait, counted to a little beyond its limit.
--
--   $1 queue  $2 count to
--
-- Each half goes by an index that begins with the queue: what other queues have waiting or scheduled is not read. Rows
-- are compared and ordered as those indexes have them, so that whatever the statistics say no other way is cheaper: with
-- queue = $1 a LIMIT makes a walk over the whole table look cheap. (Where the second index is not built yet, all that
-- waits for the relay is read; see migrate.rs.)
SELECT (SELECT count(*) FROM (
           SELECT FROM tenure.jobs
            WHERE published_at IS NOT NULL AND status = 'queued'
              AND (queue, published_at) >= ($1, '-infinity'::timestamptz)
              AND (queue, published_at) <= ($1, 'infinity'::timestamptz)
            ORDER BY queue, published_at LIMIT $2) p)
     + (SELECT count(*) FROM (
           SELECT FROM tenure.jobs
            WHERE publish_at IS NOT NULL AND status = 'queued'
              AND (queue, publish_at) >= ($1, '-infinity'::timestamptz)
              AND (queue, publish_at) <= ($1, 'infinity'::timestamptz)
            ORDER BY queue, publish_at LIMIT $2) u) AS queued
