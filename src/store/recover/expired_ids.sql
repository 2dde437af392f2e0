-- expired_ids: the jobs that expire.sql would end, after it was refused for one of them.
--
--   $1 row limit
SELECT job_id FROM tenure.job_expiries
 WHERE at <= statement_timestamp() AND at >= (SELECT tenure.look_from('job_expiries'))
 ORDER BY at, job_id
 LIMIT $1
