-- remove_schedule: delete a schedule. Its jobs stay.
--
--   $1 name
DELETE FROM tenure.schedules WHERE name = $1 RETURNING name
