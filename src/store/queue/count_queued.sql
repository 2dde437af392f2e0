-- count_queued: the number of queued jobs of a queue, counted to a little beyond its limit.
--
--   $1 queue  $2 where each half stops counting
--
-- Each half uses an index that begins with the queue, and reads no jobs of other queues. Rows are compared and ordered
-- as those indexes have them, so that no statistics make another plan cheaper: with queue = $1, a LIMIT makes a walk
-- over the whole table look cheap. (Until the second index is built, the second half reads every job that waits for the
-- relay; see migrate.rs.)
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
