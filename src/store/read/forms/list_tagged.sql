-- list_tagged: list_jobs.sql for jobs with certain tags, found by the first of these.
--
--   $1 to $12 as in list_jobs.sql  $13 tags: see tagged_jobs.sql
--
-- Made of parts: `scripts/statement list_tagged` prints it whole.
WITH chosen AS MATERIALIZED (
-- include read/parts/job_columns.sql
-- include read/parts/tagged_jobs.sql
       AND
-- include read/parts/job_filter.sql
     ORDER BY t.job_id DESC
     LIMIT $11
)
-- include read/parts/chosen_jobs.sql
