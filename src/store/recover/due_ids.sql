-- due_ids: the jobs that take_due.sql would take, after it was refused for one of them.
--
--   $1 row limit  $2 ids: jobs to pass over
SELECT id FROM tenure.jobs
 WHERE publish_at <= statement_timestamp() AND status = 'queued' AND id <> ALL ($2::uuid[])
 ORDER BY publish_at
 LIMIT $1
