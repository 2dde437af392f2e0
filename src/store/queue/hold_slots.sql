-- hold_slots: lock all slots of a queue: claims that were under way have ended, and others find no slot.
--
--   $1 queue
--
-- Second statement of a change of max_running; limit_queue.sql has locked the queue's row, so no other change adds or
-- removes slots. In order, and each claim holds its slots for a few milliseconds, and waits for none.
SELECT slot
  FROM tenure.queue_slots
 WHERE queue = $1
   AND (SELECT set_config('lock_timeout', '1s', true)) IS NOT NULL
 ORDER BY slot
   FOR NO KEY UPDATE
