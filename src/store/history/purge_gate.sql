-- purge_gate: take the turn to sweep, if the last sweep began long enough ago.
--
--   $1 seconds between sweeps  $2 the shortest retention of finished jobs in seconds; NULL: for ever
--
-- One row: this worker sweeps. From now on, jobs that finished before purged_until may be gone, and their traces with
-- them; its hour allows for the length of the sweep, and for the clocks that made the ids. Times that lie further ahead
-- are of a clock that has stepped back.
UPDATE tenure.scanner_state
   SET purged_at = clock_timestamp(),
       purged_until = greatest(least(purged_until, statement_timestamp() + interval '1 hour'),
                               statement_timestamp() - $2::float8 * interval '1 second' + interval '1 hour')
 WHERE coalesce(purged_at NOT BETWEEN statement_timestamp() - $1::float8 * interval '1 second'
                                  AND statement_timestamp() + $1::float8 * interval '1 second', true)
RETURNING purged_at
