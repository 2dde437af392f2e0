-- sweep_groups: remove what is known of groups whose followers are gone.
--
--   $1 after this follower  $2 how many followers to look at
--
-- The last follower that was looked at; NULL: there are no more. See tenure.sweep_groups in migrations/0018_groups.sql.
SELECT tenure.sweep_groups($1, $2) AS last
