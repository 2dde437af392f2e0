-- resume_schedule: resume a schedule from its next tick on; ticks during the pause do not count as missed.
--
--   $1 name  $2 the next tick  $3 cron  $4 time zone: the next tick was computed from these two
--   $5 who acts: by what, and the name
--
-- One row if it was paused, and still has these ticks.
WITH resumed AS (
    UPDATE tenure.schedules
       SET paused_at = NULL, next_at = greatest(next_at, $2)
     WHERE name = $1 AND paused_at IS NOT NULL AND cron = $3 AND time_zone = $4
    RETURNING queue, next_at
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue, subject)
    SELECT ($5::text[])[1], ($5::text[])[2], 'resume_schedule', queue, $1
      FROM resumed
)
SELECT next_at FROM resumed
