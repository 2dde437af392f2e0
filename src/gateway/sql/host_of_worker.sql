-- host_of_worker: the host that a worker named. No row: its jobs would be found by their silence alone.
--
--   $1 worker id
SELECT hostname FROM tenure.workers WHERE worker_id = $1
