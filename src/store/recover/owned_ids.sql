-- owned_ids: the jobs of some workers, after reset_vanished.sql was refused for one of them.
--
--   $1 worker ids  $2 ids: jobs to pass over
SELECT id FROM tenure.jobs
 WHERE worker_id = ANY ($1::text[]) AND status = 'processing' AND id <> ALL ($2::uuid[])
