-- link_jobs: new jobs of a group wait for others, inside the transaction that creates them.
--
--   $1 the jobs to wait for  $2 those that wait  $3 the group
--
-- In this order a follower sees the outputs. See migrations/functions/groups/link_jobs.sql.
SELECT tenure.link_jobs($1, $2, $3)
