-- match_jobs: the ids of jobs that match and that an action can touch, the newest first.
--
--   $1 to $10 which: see job_filter.sql  $11 row limit  $12 'cancel' or 'retry'
--
-- No action can touch a finished job: by the first of the conditions on the status the history is not read at all.
-- Made of parts: `scripts/statement match_jobs` prints it whole.
SELECT id
  FROM tenure.all_jobs j
 WHERE status IN ('queued', 'processing', 'failed')
   AND CASE WHEN $12 = 'cancel' THEN
-- include read/parts/can_cancel.sql
            ELSE
-- include read/parts/can_retry.sql
       END
   AND
-- include read/parts/job_filter.sql
 ORDER BY id DESC
 LIMIT $11
