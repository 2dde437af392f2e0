-- lost_ids: the jobs that reclaim_lost.sql would take, and some more, after it was refused for one of them.
--
--   $1 queue  $2 published before  $3 row limit
SELECT id FROM tenure.jobs
 WHERE queue = $1 AND published_at < $2 AND status = 'queued'
 ORDER BY published_at
 LIMIT $3
