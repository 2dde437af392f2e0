-- claim_limited: of a queue whose row is locked by this transaction (lock_queue.sql), which has counted its room
-- (queue_room.sql), and notes what it claims (take_slots.sql).
   AND NOT EXISTS (SELECT FROM tenure.queues q WHERE q.queue = $2 AND q.paused_at IS NOT NULL)
