-- suspect: record what probes of silent processes found. No process there: suspected from now on, if not before.
-- An answer: not suspected.
--
--   $1 worker ids  $2 whether the process is gone
--
-- A process that has renewed its row meanwhile is left alone.
UPDATE tenure.workers w
   SET suspected_at = CASE WHEN u.gone THEN coalesce(w.suspected_at, clock_timestamp()) END
  FROM unnest($1::text[], $2::bool[]) AS u(worker_id, gone)
 WHERE w.worker_id = u.worker_id
   AND w.last_seen_at < statement_timestamp() - 1.4 * w.renew_every
   AND (w.suspected_at IS NULL) = u.gone
