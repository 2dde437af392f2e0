-- purge_rows: delete finished jobs that are old enough, on days with jobs that are not.
--
--   $1 seconds that completed jobs are kept  $2 the same for cancelled jobs; NULL: for ever  $3 after this id
--   $4 rows to look at
--
-- One row: how many jobs were deleted, and the last id that was looked at; NULL: none is left to look at.
SELECT completed, cancelled, last
  FROM tenure.purge_rows($1::float8 * interval '1 second', $2::float8 * interval '1 second', $3, $4)
