-- pause_schedule: stop a schedule's ticks.
--
--   $1 name
--
-- One row: whether it was paused before.
UPDATE tenure.schedules s
   SET paused_at = coalesce(s.paused_at, clock_timestamp())
  FROM (SELECT name, paused_at IS NOT NULL AS was_paused FROM tenure.schedules WHERE name = $1 FOR UPDATE) before
 WHERE s.name = before.name
RETURNING before.was_paused
