-- resume_queue: allow claims of this queue's jobs again.
--
--   $1 queue  $2 who acts: by what, and the name
--
-- One row if it was paused.
WITH resumed AS (
    UPDATE tenure.queues
       SET paused_at = NULL
     WHERE queue = $1 AND paused_at IS NOT NULL
    RETURNING queue
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue)
    SELECT ($2::text[])[1], ($2::text[])[2], 'resume_queue', queue
      FROM resumed
)
SELECT queue FROM resumed
