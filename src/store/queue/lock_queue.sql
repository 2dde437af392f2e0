-- lock_queue: serialize the claims of a limited queue. First statement of their transaction.
--
--   $1 queue
--
-- Two claims at once would count the same free slots. The next statement has a snapshot of its own, and sees the claims
-- of the transaction that held the lock before. This statement waits for longer than a claim does, because claims queue
-- up here: each holds the lock for a few milliseconds. It locks the first slot, because a worker may not change the
-- settings that operators give a queue.
SELECT slot
  FROM tenure.queue_slots
 WHERE queue = $1 AND slot = 1
   AND (SELECT set_config('lock_timeout', '500ms', true)) IS NOT NULL
   FOR NO KEY UPDATE
