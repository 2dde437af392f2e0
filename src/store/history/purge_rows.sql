-- purge_rows: finished jobs that are old enough, in days of which others are not.
--
--   $1 seconds that completed jobs are kept  $2 and cancelled ones; NULL: for ever  $3 after this id  $4 rows to look at
--
-- One row: how many went, and where it has come to; NULL: to the end.
SELECT completed, cancelled, last
  FROM tenure.purge_rows($1::float8 * interval '1 second', $2::float8 * interval '1 second', $3, $4)
