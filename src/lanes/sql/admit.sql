-- admit: release jobs of a queue with lanes. The caller publishes them.
--
--   $1 queue  $2 lanes to look at first (sorted)  $3 jobs that have ended  $4 the most jobs
--
-- See migrations/functions/lanes/admit.sql.
SELECT id, queue, kind, dispatch, clear_reason, trace_context FROM tenure.admit($1, $2, $3, $4)
