-- limit_queue: set how many jobs of a queue may run, and how many may wait, in the whole fleet.
--
--   $1 queue  $2 whether to change max_running  $3 to what (NULL: no limit)
--   $4 whether to change max_queued  $5 to what (NULL: no limit)
--
-- Locks the queue's row until the transaction ends: one change at a time. If max_running changes, hold_slots.sql and
-- fill_slots.sql follow in the same transaction.
INSERT INTO tenure.queues AS q (queue, max_running, max_queued)
VALUES ($1, CASE WHEN $2 THEN $3::int END, CASE WHEN $4 THEN $5::bigint END)
    ON CONFLICT (queue) DO UPDATE
   SET max_running = CASE WHEN $2 THEN $3::int ELSE q.max_running END,
       max_queued  = CASE WHEN $4 THEN $5::bigint ELSE q.max_queued END
RETURNING max_running, max_queued, paused_at
