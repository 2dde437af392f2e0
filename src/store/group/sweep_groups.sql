-- sweep_groups: remove what is known of groups whose followers are gone.
--
--   $1 row limit
SELECT tenure.sweep_groups($1) AS gone
