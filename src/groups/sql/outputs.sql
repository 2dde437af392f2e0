-- outputs: what a job's predecessors, or the jobs of one of its steps, have left, in order.
--
--   $1 id  $2 the step, or NULL  $3 after this place  $4 row limit
--
-- `state` is NULL for a job that has not ended; `output` is NULL for one that left nothing.
SELECT before, n, state, output::text AS output
  FROM tenure.job_edges
 WHERE after = $1 AND step IS NOT DISTINCT FROM $2 AND n > $3
 ORDER BY n
 LIMIT $4
