-- pause_schedule: stop a schedule's ticks.
--
--   $1 name  $2 who acts: by what, and the name
--
-- One row: whether it was paused before.
WITH paused AS (
    UPDATE tenure.schedules s
       SET paused_at = coalesce(s.paused_at, clock_timestamp())
      FROM (SELECT name, paused_at IS NOT NULL AS was_paused FROM tenure.schedules WHERE name = $1 FOR UPDATE) before
     WHERE s.name = before.name
    RETURNING s.queue, before.was_paused
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue, subject)
    SELECT ($2::text[])[1], ($2::text[])[2], 'pause_schedule', queue, $1
      FROM paused
     WHERE NOT was_paused
)
SELECT was_paused FROM paused
