-- add_edges: jobs wait for others, inside the transaction that creates these.
--
--   $1 the jobs to wait for  $2 those that wait  $3 the group  $4 the step of a running job that waits, or NULL
--
-- In this order a follower sees the outputs. An edge that is there already stays.
INSERT INTO tenure.job_edges (before, after, group_id, step)
SELECT u.before, u.after, $3, $4
  FROM unnest($1::uuid[], $2::uuid[]) AS u(before, after)
    ON CONFLICT (before, after) DO NOTHING
