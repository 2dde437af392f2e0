-- due_schedules: schedules whose next tick is due, a page of them. The worker that has the relay's turn asks when one is.
--
--   $1 instead, all whose next tick lies ahead: the clock has stepped back  $2, $3 the last one of the page before: its
--   next tick, and its name; NULL: this is the first page
--
-- A tick that waits for the end of the last job is not due (overlap 'queue').
SELECT name, cron, time_zone, missed, next_at, statement_timestamp() AS now, overlap, last_job_id,
       EXISTS (SELECT FROM tenure.jobs j WHERE j.id = schedules.last_job_id) AS last_is_live
  FROM tenure.schedules
 WHERE CASE WHEN $1::boolean THEN next_at > statement_timestamp() ELSE next_at <= statement_timestamp() END
   AND paused_at IS NULL AND coalesce((next_at, name) > ($2::timestamptz, $3::text), true)
   AND NOT (NOT $1 AND overlap = 'queue' AND EXISTS (SELECT FROM tenure.jobs j WHERE j.id = schedules.last_job_id))
 ORDER BY next_at, name
 LIMIT 100
