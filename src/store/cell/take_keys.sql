-- take_keys: the unique keys of a queue that arrives. Their jobs are in another cell.
--
--   $1 queue  $2 keys  $3 their jobs
--
-- Retention counts from now on: this cell cannot know when those jobs end. A key that is taken here keeps its job.
-- One row a key that was new.
INSERT INTO tenure.job_keys (scope, key, job_id, ended_at)
SELECT $1, key, job, clock_timestamp() FROM unnest($2::text[], $3::uuid[]) AS u(key, job)
    ON CONFLICT (scope, key) DO NOTHING
RETURNING key
