-- silent_workers: processes that have not renewed their row for some time, for this worker to probe.
--
--   $1 seconds between two probes  $2 worker id of the caller
--   $3 seconds within which they must have renewed it; NULL: any time. A caller that has just started does not
--      know why the others fell silent
--
-- One worker at a time probes a process, however many workers there are: a frozen process reads no probes,
-- and too many would make NATS close its connection. In turn, so that many that stay silent keep none from its probe; and
-- those behind a gateway, which say who they are as they like, keep none of the others from it.
UPDATE tenure.workers w
   SET probed_at = clock_timestamp()
  FROM (VALUES (true), (false)) AS k (is_foreign)
 CROSS JOIN LATERAL (
       SELECT worker_id FROM tenure.workers
        WHERE probe_subject IS NOT NULL
          AND worker_id <> $2
          AND (language IS NOT NULL) = k.is_foreign
          AND last_seen_at < statement_timestamp() - 1.4 * renew_every
          AND coalesce(last_seen_at > statement_timestamp() - $3::float8 * interval '1 second', true)
          AND coalesce(probed_at < statement_timestamp() - $1::float8 * interval '1 second', true)
        ORDER BY probed_at NULLS FIRST, last_seen_at
        LIMIT 50
          FOR NO KEY UPDATE SKIP LOCKED) silent
 WHERE w.worker_id = silent.worker_id
RETURNING w.worker_id, w.probe_subject
