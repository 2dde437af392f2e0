-- due_ids: the jobs that take_due.sql would take, after it was refused for one of them.
--
--   $1 row limit
SELECT id FROM tenure.jobs
 WHERE publish_at <= statement_timestamp() AND status = 'queued'
 ORDER BY publish_at
 LIMIT $1
