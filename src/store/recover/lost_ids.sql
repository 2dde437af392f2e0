-- lost_ids: the jobs that reclaim_lost.sql would take, and some more, after it was refused for one of them.
--
--   $1 queue  $2 published before  $3 row limit  $4 ids: jobs to pass over
SELECT id FROM tenure.jobs
 WHERE queue = $1 AND published_at < $2 AND status = 'queued' AND id <> ALL ($4::uuid[])
 ORDER BY published_at
 LIMIT $3
