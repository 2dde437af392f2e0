-- resume_schedule: resume a schedule from its next tick on; ticks during the pause do not count as missed.
--
--   $1 name  $2 the next tick  $3 cron  $4 time zone: the next tick was computed from these two
--
-- One row if it was paused, and still has these ticks.
UPDATE tenure.schedules
   SET paused_at = NULL, next_at = greatest(next_at, $2)
 WHERE name = $1 AND paused_at IS NOT NULL AND cron = $3 AND time_zone = $4
RETURNING next_at
