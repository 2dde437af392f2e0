-- resume_queue: allow claims of this queue's jobs again.
--
--   $1 queue
--
-- One row if it was paused.
UPDATE tenure.queues
   SET paused_at = NULL
 WHERE queue = $1 AND paused_at IS NOT NULL
RETURNING queue
