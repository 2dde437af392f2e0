-- add_followers: note the jobs of a group that wait for others.
--
--   $1 ids  $2 what each does when a job before it has failed (`cancel`, `run`, `hold`)  $3 the group
INSERT INTO tenure.followers (job_id, group_id, on_failure)
SELECT u.job_id, $3, u.on_failure
  FROM unnest($1::uuid[], $2::text[]) AS u(job_id, on_failure)
    ON CONFLICT (job_id) DO NOTHING
