-- empty_slots: lock the slots of a queue whose limit is about to change, and empty them. First statement of the
-- transaction; the next one, limit_queue.sql, takes a slot for each job that runs.
--
--   $1 queue
--
-- Waits for claims under way, each of which has locked its slots for a few milliseconds. The next statement has a snapshot
-- of its own, and sees what they have claimed. Claims that begin meanwhile pass over these slots, and win nothing.
WITH locked AS MATERIALIZED (
    SELECT slot
      FROM tenure.queue_slots
     WHERE queue = $1 AND (SELECT set_config('lock_timeout', '500ms', true)) IS NOT NULL
     ORDER BY slot
       FOR NO KEY UPDATE
)
UPDATE tenure.queue_slots s
   SET job_id = NULL, fencing_token = NULL
  FROM locked
 WHERE s.queue = $1 AND s.slot = locked.slot
