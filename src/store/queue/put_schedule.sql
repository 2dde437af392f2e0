-- put_schedule: create or change a schedule.
--
--   $1 name  $2 cron  $3 time zone  $4 queue  $5 kind  $6 payload (JSON text)  $7 tick field  $8 max_attempts
--   $9 missed  $10 its first tick
--
-- One row. If the ticks are the same as before, the next tick stays: a program that puts its schedules at every start
-- moves none. A paused schedule stays paused.
INSERT INTO tenure.schedules AS s (name, cron, time_zone, queue, kind, payload, tick_field, max_attempts, missed, next_at)
VALUES ($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8, $9, $10)
    ON CONFLICT (name) DO UPDATE
   SET cron = excluded.cron, time_zone = excluded.time_zone, queue = excluded.queue, kind = excluded.kind,
       payload = excluded.payload, tick_field = excluded.tick_field, max_attempts = excluded.max_attempts,
       missed = excluded.missed, changed_at = clock_timestamp(),
       next_at = CASE WHEN (s.cron, s.time_zone) = (excluded.cron, excluded.time_zone) THEN s.next_at
                      ELSE excluded.next_at END
RETURNING next_at, xmax = 0 AS is_new
