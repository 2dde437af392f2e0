-- most_at_once: the most of these jobs whose attempts ran at one moment; NULL: none is known to have run. For tests.
--
--   $1 ids
WITH changes AS (
    SELECT started_at AS at, 1 AS more FROM tenure.job_executions_all WHERE job_id = ANY ($1::uuid[])
    UNION ALL
    SELECT finished_at, -1 FROM tenure.job_executions_all WHERE job_id = ANY ($1::uuid[]) AND finished_at IS NOT NULL
)
SELECT max(running)::bigint AS jobs
  FROM (SELECT sum(more) OVER (ORDER BY at, more ROWS UNBOUNDED PRECEDING) AS running FROM changes) r
