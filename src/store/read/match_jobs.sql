-- match_jobs: the ids of jobs that match and that an action can touch, a page at a time, the newest first.
--
--   $1 to $10 which: see job_filter.sql  $11 row limit  $12 created no later than this  $13 'cancel' or 'retry'
--
-- Made of parts: `scripts/statement match_jobs` prints it whole.
SELECT id
  FROM tenure.all_jobs j
 WHERE
-- include read/parts/job_filter.sql
   AND created_at <= $12
   AND CASE WHEN $13 = 'cancel' THEN
-- include read/parts/can_cancel.sql
            ELSE
-- include read/parts/can_retry.sql
       END
 ORDER BY id DESC
 LIMIT $11
