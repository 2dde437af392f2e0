-- lock_queue: have the claims of a limited queue one after the other. First statement of their transaction.
--
--   $1 queue
--
-- Two at once would count the same free slots. The next statement has a snapshot of its own, and sees what whoever
-- held the lock before has claimed. It waits for longer than claims do, which stand in line here: each holds the lock
-- for a few milliseconds. The first slot is what is locked: a worker may not change what an operator has said of the
-- queue.
SELECT slot
  FROM tenure.queue_slots
 WHERE queue = $1 AND slot = 1
   AND (SELECT set_config('lock_timeout', '500ms', true)) IS NOT NULL
   FOR NO KEY UPDATE
