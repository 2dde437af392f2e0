-- add_edges: a step of a running job waits for jobs, inside the transaction that creates these.
--
--   $1 the jobs to wait for  $2 the running job  $3 the group  $4 the step
--
-- In this order the step returns the outputs. An edge that is there already stays. The fence follows in the same transaction.
WITH follower AS (
    INSERT INTO tenure.followers (job_id, group_id, on_failure) VALUES ($2, $3, 'run') ON CONFLICT (job_id) DO NOTHING
)
INSERT INTO tenure.job_edges (before, after, group_id, step)
SELECT u.before, $2, $3, $4
  FROM unnest($1::uuid[]) WITH ORDINALITY AS u(before, n)
 ORDER BY u.n
    ON CONFLICT (before, after) DO NOTHING
