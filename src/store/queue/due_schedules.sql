-- due_schedules: schedules whose next tick is due. The worker that has the relay's turn asks when one is.
SELECT name, cron, time_zone, missed, next_at, statement_timestamp() AS now
  FROM tenure.schedules
 WHERE next_at <= statement_timestamp() AND paused_at IS NULL
 ORDER BY next_at
 LIMIT 100
