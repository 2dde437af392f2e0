-- list_jobs: jobs that match, the newest first.
--
--   $1 to $10 which: see job_filter.sql  $11 row limit  $12 whether to read payloads and outputs
--
-- Made of parts: `scripts/statement list_jobs` prints it whole.
WITH chosen AS MATERIALIZED (
-- include read/parts/job_columns.sql
      FROM tenure.all_jobs j
     WHERE
-- include read/parts/job_filter.sql
     ORDER BY id DESC
     LIMIT $11
)
-- include read/parts/chosen_jobs.sql
