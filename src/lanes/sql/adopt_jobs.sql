-- adopt_jobs: take hold of jobs that stood in a queue before it had lanes; returns how many. Repeat it until that is 0.
--
--   $1 queue  $2 row limit
SELECT tenure.adopt_jobs($1, $2) AS jobs
