-- workers_of_host: the processes that registered from this host and did not sign off.
--
--   $1 hostname  $2 worker id of the caller
SELECT worker_id, pid, boot_id, pid_namespace, pid_started_at, lock_file
  FROM tenure.workers
 WHERE hostname = $1 AND worker_id <> $2
