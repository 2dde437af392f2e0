-- list_steps: the latest steps, sleeps and effects of one job, oldest first.
--
--   $1 id  $2 row limit
--
-- An event stands under its name once a wait has found it, and before that under another (tenure.signal in
-- migrations/functions/waits/await_event.sql).
SELECT * FROM (
    SELECT ltrim(key, E'\x01') AS key, coalesce(step_kind, 'effect') AS step, fencing_token, began_at, created_at, wakes_at
      FROM tenure.effects
     WHERE job_id = $1
       AND NOT (key ^@ E'\x01'
                AND EXISTS (SELECT FROM tenure.effects e
                             WHERE e.job_id = $1 AND e.key = substr(effects.key, 2) AND e.step_kind = 'event'))
     ORDER BY created_at DESC, key DESC
     LIMIT $2) e
 ORDER BY created_at, key
