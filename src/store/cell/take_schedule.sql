-- take_schedule: a schedule of another cell, as it was there: its next tick and its pause, too. Unless a later move has
-- begun.
--
--   $1 the schedule, as schedules_of_queue.sql wrote it  $2 the number of the move
--
-- One row, unless a schedule of this name exists already, which stays as it is, or the move no longer holds.
INSERT INTO tenure.schedules (name, cron, time_zone, queue, kind, payload, tick_field, max_attempts, missed, overlap, paused_at,
                              next_at, last_tick_at, last_job_id)
SELECT s.name, s.cron, s.time_zone, s.queue, s.kind, coalesce(s.payload, 'null'), s.tick_field, s.max_attempts,
       s.missed, coalesce(s.overlap, 'allow'), s.paused_at, s.next_at, s.last_tick_at, s.last_job_id
  FROM jsonb_populate_record(NULL::tenure.schedules, $1::jsonb) s
  JOIN tenure.queues q ON q.queue = s.queue AND q.moves = $2
   FOR SHARE OF q
    ON CONFLICT (name) DO NOTHING
RETURNING name
