-- due_schedules: schedules whose next tick has come. Asked by the worker that has the relay's turn, when one is due.
SELECT name, cron, time_zone, missed, next_at, statement_timestamp() AS now
  FROM tenure.schedules
 WHERE next_at <= statement_timestamp() AND paused_at IS NULL
 ORDER BY next_at
 LIMIT 100
