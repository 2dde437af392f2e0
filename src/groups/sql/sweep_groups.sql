-- sweep_groups: remove what is known of groups whose followers are gone.
--
--   $1 after this follower  $2 how many followers to look at
--
-- The last follower that was looked at; NULL: there are no more. See migrations/functions/groups/sweep_groups.sql.
SELECT tenure.sweep_groups($1, $2) AS last
