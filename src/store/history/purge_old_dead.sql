-- purge_old_dead: dead letters that are old enough, the oldest first. (purge_dead.sql is an operator's.)
--
--   $1 seconds that they are kept  $2 row limit
SELECT tenure.purge_dead($1::float8 * interval '1 second', $2) AS gone
