-- left_behind: what a queue that has moved still has here.
--
--   $1 queue
SELECT (SELECT count(*) FROM tenure.jobs WHERE queue = $1) AS live,
       (SELECT count(*) FROM tenure.dead_letter_jobs WHERE queue = $1) AS dead
