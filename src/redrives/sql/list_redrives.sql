-- list_redrives: calm redrives, the latest first.
--
--   $1 id, or NULL for all  $2 row limit
SELECT id, started_at, selection::text AS selection, canary, rate, stop_at, jobs, redriven, completed, failed, cancelled,
       waiting, missing, state, reason, ended_at
  FROM tenure.redrives
 WHERE $1::uuid IS NULL OR id = $1
 ORDER BY started_at DESC
 LIMIT $2
