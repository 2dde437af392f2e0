-- list_steps: the latest steps, sleeps and effects of one job, oldest first.
--
--   $1 id  $2 row limit
SELECT * FROM (
    SELECT key, coalesce(step_kind, 'effect') AS step, fencing_token, began_at, created_at, wakes_at
      FROM tenure.effects
     WHERE job_id = $1
     ORDER BY created_at DESC, key DESC
     LIMIT $2) e
 ORDER BY created_at, key
