-- forget_workers: processes that were not heard of for a week, and own nothing any more.
DELETE FROM tenure.workers w
 WHERE w.last_seen_at < statement_timestamp() - interval '7 days'
   AND NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.worker_id = w.worker_id)
