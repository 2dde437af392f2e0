-- pause_queue: stop all claims of this queue's jobs. Running jobs go on.
--
--   $1 queue
--
-- One row: since when the queue has been paused, and whether it was paused before.
INSERT INTO tenure.queues AS q (queue, paused_at)
VALUES ($1, clock_timestamp())
    ON CONFLICT (queue) DO UPDATE
   SET paused_at = coalesce(q.paused_at, excluded.paused_at)
RETURNING paused_at, paused_at < statement_timestamp() AS was_paused
