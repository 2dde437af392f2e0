-- purge_day: remove a day of the history whose every job is old enough.
--
--   $1 seconds that completed jobs are kept  $2 the same for cancelled jobs; NULL: for ever
--
-- No row: no day is old enough, or another session holds it; the next sweep tries again.
SELECT completed, cancelled
  FROM tenure.purge_day($1::float8 * interval '1 second', $2::float8 * interval '1 second')
