-- take_schedule: a schedule of another cell, as it was there: its next tick and its pause, too.
--
--   $1 the schedule, as schedules_of_queue.sql wrote it
--
-- One row, unless a schedule of this name exists already: then it stays as it is.
INSERT INTO tenure.schedules (name, cron, time_zone, queue, kind, payload, tick_field, max_attempts, missed, paused_at,
                              next_at, last_tick_at, last_job_id)
SELECT name, cron, time_zone, queue, kind, payload, tick_field, max_attempts, missed, paused_at, next_at, last_tick_at,
       last_job_id
  FROM jsonb_populate_record(NULL::tenure.schedules, $1::jsonb)
    ON CONFLICT (name) DO NOTHING
RETURNING name
