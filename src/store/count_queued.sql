-- count_queued: how many jobs of a queue wait, counted to a little beyond its limit.
--
--   $1 queue  $2 count to
--
-- Jobs whose message is published are found by the queue's own index; the others, of which there are few unless many
-- are scheduled, by the relay's.
SELECT (SELECT count(*) FROM (
           SELECT FROM tenure.jobs
            WHERE queue = $1 AND published_at IS NOT NULL AND status = 'queued' LIMIT $2) p)
     + (SELECT count(*) FROM (
           SELECT FROM tenure.jobs
            WHERE queue = $1 AND publish_at IS NOT NULL AND status = 'queued' LIMIT $2) u) AS queued
