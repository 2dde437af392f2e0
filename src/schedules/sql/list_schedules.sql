-- list_schedules: all schedules, or one.
--
--   $1 name or NULL
SELECT name, cron, time_zone, queue, kind, payload::text AS payload, tick_field, max_attempts, missed, overlap, options, paused_at, next_at,
       last_tick_at, last_job_id, created_at, changed_at
  FROM tenure.schedules
 WHERE name = coalesce($1, name)
 ORDER BY name
