-- count_waiting: the number of jobs that wait for their time, of those that have been tried and of the others; and of
-- those that their lanes hold.
--
--   $1 look at this many jobs of each, at most
--
-- NULL: there are more. A job that waits is the relay's, so the index of what the relay owes finds it; the time of a
-- held one never comes.
SELECT CASE WHEN w.jobs <= $1 THEN w.retrying END AS retrying, CASE WHEN w.jobs <= $1 THEN w.scheduled END AS scheduled,
       CASE WHEN h.jobs <= $1 THEN h.jobs END AS held
  FROM (SELECT count(*) AS jobs, count(*) FILTER (WHERE waits AND attempt > 0) AS retrying,
               count(*) FILTER (WHERE waits AND attempt = 0) AS scheduled
          FROM (SELECT attempt, status = 'queued' AND scheduled_at > statement_timestamp() AS waits
                  FROM tenure.jobs
                 WHERE publish_at > statement_timestamp() AND publish_at < '9998-01-01 00:00:00+00'
                 LIMIT $1 + 1) AS later) AS w
 CROSS JOIN (SELECT count(*) AS jobs
               FROM (SELECT FROM tenure.jobs WHERE publish_at >= '9998-01-01 00:00:00+00' LIMIT $1 + 1) AS held) AS h
