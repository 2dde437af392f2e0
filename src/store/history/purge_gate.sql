-- purge_gate: whether it is this worker's turn to sweep: nobody has for so long.
--
--   $1 seconds between sweeps  $2 seconds that the shortest kept of finished jobs are kept; NULL: for ever
--
-- One row if it is. What finished before then may be gone from now on, and with it what is remembered of it; the hour
-- is for how long the sweep may take, and for clocks that ids were made by.
UPDATE tenure.scanner_state
   SET purged_at = clock_timestamp(),
       purged_until = greatest(purged_until, statement_timestamp() - $2::float8 * interval '1 second' + interval '1 hour')
 WHERE coalesce(purged_at < statement_timestamp() - $1::float8 * interval '1 second', true)
RETURNING purged_at
