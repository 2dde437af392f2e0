-- purge_old_dead: delete dead letters that are old enough, the oldest first. (Operators use purge_dead.sql.)
--
--   $1 seconds that they are kept  $2 row limit
SELECT tenure.purge_dead($1::float8 * interval '1 second', $2) AS gone
