-- add_followers: note the jobs of a group that wait for others.
--
--   $1 ids  $2 what each does when a job before it has failed (`cancel`, `run`, `hold`)  $3 the group
SELECT tenure.add_followers($1, $2, $3)
