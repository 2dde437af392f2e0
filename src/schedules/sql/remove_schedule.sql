-- remove_schedule: delete a schedule. Its jobs stay.
--
--   $1 name  $2 who acts: by what, and the name
WITH removed AS (
    DELETE FROM tenure.schedules WHERE name = $1 RETURNING name, queue
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue, subject)
    SELECT ($2::text[])[1], ($2::text[])[2], 'remove_schedule', queue, name
      FROM removed
)
SELECT name FROM removed
