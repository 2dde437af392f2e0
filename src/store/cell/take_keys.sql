-- take_keys: the unique keys of a queue that arrives. Their jobs are in another cell.
--
--   $1 queue  $2 keys  $3 their jobs
--
-- Retention counts from now on, also of a key that an earlier move has brought: this cell cannot know when those jobs
-- end. A key that is taken here keeps its job.
-- One row a key that was not: whether it is new.
INSERT INTO tenure.job_keys (scope, key, job_id, ended_at)
SELECT $1, key, job, clock_timestamp() FROM unnest($2::text[], $3::uuid[]) AS u(key, job)
    ON CONFLICT (scope, key) DO UPDATE SET ended_at = excluded.ended_at WHERE job_keys.ended_at IS NOT NULL
RETURNING xmax = 0 AS is_new
