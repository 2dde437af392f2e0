-- count_waiting: the number of jobs that wait for their time, of those that have been tried and of the others.
--
--   $1 look at this many jobs, at most
--
-- No row: there are more. A job that waits is the relay's, so the index of what the relay owes finds it.
SELECT count(*) FILTER (WHERE waits AND attempt > 0) AS retrying, count(*) FILTER (WHERE waits AND attempt = 0) AS scheduled
  FROM (SELECT attempt, status = 'queued' AND scheduled_at > statement_timestamp() AS waits
          FROM tenure.jobs WHERE publish_at > statement_timestamp() LIMIT $1 + 1) w
HAVING count(*) <= $1
