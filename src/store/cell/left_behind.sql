-- left_behind: what a queue that has moved still has here, each counted to a limit.
--
--   $1 queue  $2 the limit
--
-- A live job has one of the two times: an index by the queue serves each.
SELECT (SELECT count(*) FROM (SELECT FROM tenure.jobs
                               WHERE queue = $1 AND published_at IS NOT NULL LIMIT $2) AS published)
     + (SELECT count(*) FROM (SELECT FROM tenure.jobs
                               WHERE queue = $1 AND publish_at IS NOT NULL LIMIT $2) AS unpublished) AS live,
       (SELECT count(*) FROM (SELECT FROM tenure.dead_letter_jobs WHERE queue = $1 LIMIT $2) AS dead) AS dead
