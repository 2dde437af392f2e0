-- register_worker: register this process; renew_worker.sql writes its signs of life.
--
--   $1 worker id  $2 hostname  $3 pid  $4 boot id  $5 pid namespace  $6 start of the process
--   $7 lock file  $8 probe subject  $9 queues  $10 slots  $11 version  $12 kinds or NULL  $13 renew_every in seconds
--   $14 the kinds that keep no history, or NULL  $15 the language of a worker behind a gateway, or NULL
--   $16 for each queue, how many jobs one message may name, or NULL: one
INSERT INTO tenure.workers (worker_id, hostname, pid, boot_id, pid_namespace, pid_started_at, lock_file,
       probe_subject, queues, slots, version, kinds, renew_every, unkept, language,
       jobs_per_message)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
        $13::float8 * interval '1 second', $14, $15, $16)
ON CONFLICT (worker_id) DO UPDATE
   SET last_seen_at = clock_timestamp(), suspected_at = NULL, probe_subject = excluded.probe_subject
