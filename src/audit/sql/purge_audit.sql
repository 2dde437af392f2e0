-- purge_audit: delete acts that are old enough, the oldest first.
--
--   $1 seconds that they are kept  $2 row limit
SELECT tenure.purge_audit($1::float8 * interval '1 second', $2) AS gone
