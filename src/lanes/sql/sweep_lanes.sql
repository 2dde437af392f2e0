-- sweep_lanes: remove the rows of lanes that have no job and no settings of their own; returns how many.
--
--   $1 row limit
--
-- See migrations/functions/lanes/sweep_lanes.sql.
SELECT tenure.sweep_lanes($1) AS lanes
