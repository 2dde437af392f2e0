-- end_transaction: end the session of a transaction that its caller gave up: the server would go on with
-- its statement, and hold the job.
--
--   $1 pid  $2 when the transaction began
SELECT pg_terminate_backend(pid) AS ended
  FROM pg_catalog.pg_stat_activity
 WHERE pid = $1 AND xact_start = $2
