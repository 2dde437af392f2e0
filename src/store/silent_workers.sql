-- silent_workers: processes that have not renewed their row for some time, and can be asked about.
--
--   $1 seconds of silence  $2 worker id of the caller
SELECT worker_id, probe_subject
  FROM tenure.workers
 WHERE probe_subject IS NOT NULL
   AND worker_id <> $2
   AND last_seen_at < statement_timestamp() - $1::float8 * interval '1 second'
 ORDER BY last_seen_at
 LIMIT 100
