-- mend_groups: look for ends of jobs of groups that were not noted.
--
--   $1 after this follower  $2 how many followers
--
-- The last follower that was looked at; NULL: there are no more. See migrations/functions/groups/mend_groups.sql.
SELECT tenure.mend_groups($1, $2) AS last
