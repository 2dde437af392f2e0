-- purge_day: a day of the history, if one is old enough as a whole.
--
--   $1 seconds that completed jobs are kept  $2 and cancelled ones; NULL: for ever
--
-- No row: there is none, or somebody holds it; the next sweep tries again.
SELECT completed, cancelled
  FROM tenure.purge_day($1::float8 * interval '1 second', $2::float8 * interval '1 second')
