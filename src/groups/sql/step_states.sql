-- step_states: how the jobs of a running job's step have ended.
--
--   $1 id  $2 the step
--
-- One row: how many there are, how many have not ended, and how many have failed or were cancelled, with the first.
SELECT count(*) AS jobs, count(*) FILTER (WHERE state IS NULL) AS open,
       count(*) FILTER (WHERE state <> 'completed') AS lacking,
       (array_agg(before ORDER BY n) FILTER (WHERE state <> 'completed'))[1] AS first_lacking
  FROM tenure.job_edges
 WHERE after = $1 AND step = $2
