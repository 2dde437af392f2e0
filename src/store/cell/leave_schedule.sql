-- leave_schedule: remove a schedule that another cell has taken, as it was taken, unless a later move has begun.
--
--   $1 name  $2 queue  $3 when it was changed last  $4 the number of the move
--
-- One row if it was removed. The lock: a move that begins meanwhile waits, and then finds it gone.
WITH held AS MATERIALIZED (
    SELECT queue FROM tenure.queues WHERE queue = $2 AND moves = $4 FOR SHARE
)
DELETE FROM tenure.schedules s
 USING held
 WHERE s.name = $1 AND s.queue = held.queue AND s.changed_at = $3
RETURNING s.name
