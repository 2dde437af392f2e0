-- count_jobs: how many jobs that match each action can touch.
--
--   $1 to $10 which: see job_filter.sql  $11 created no later than this
--
-- Made of parts: `scripts/statement count_jobs` prints it whole.
SELECT count(*) FILTER (WHERE
-- include read/parts/can_cancel.sql
       ) AS cancel, count(*) FILTER (WHERE
-- include read/parts/can_retry.sql
       ) AS retry
  FROM tenure.all_jobs j
 WHERE
-- include read/parts/job_filter.sql
   AND created_at <= $11
