-- leave_schedule: remove a schedule that another cell has taken, as it was taken, while its queue is marked as moved
-- there.
--
--   $1 name  $2 queue  $3 when it was changed last  $4 the cell to which the queue has moved
--
-- One row if it was removed.
DELETE FROM tenure.schedules s
 USING tenure.queues q
 WHERE s.name = $1 AND s.queue = $2 AND s.changed_at = $3 AND q.queue = s.queue AND q.moved_to = $4
RETURNING s.name
