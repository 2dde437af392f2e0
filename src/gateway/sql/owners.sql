-- owners: which workers run these jobs.
--
--   $1 ids
SELECT id, worker_id FROM tenure.jobs WHERE id = ANY ($1::uuid[]) AND status = 'processing' AND worker_id IS NOT NULL
