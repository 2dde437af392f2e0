-- remove_worker: this process has ended in good order, or is proven dead.
--
--   $1 worker ids
DELETE FROM tenure.workers WHERE worker_id = ANY ($1::text[])
