-- expired_ids: the jobs that expire.sql would end, after it was refused for one of them.
--
--   $1 row limit  $2 ids: jobs to pass over
SELECT job_id FROM tenure.job_expiries
 WHERE at <= statement_timestamp() AND at >= (SELECT tenure.look_from('job_expiries'))
   AND job_id <> ALL ($2::uuid[])
 ORDER BY at, job_id
 LIMIT $1
