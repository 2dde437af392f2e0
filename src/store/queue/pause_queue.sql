-- pause_queue: stop all claims of this queue's jobs. Running jobs go on.
--
--   $1 queue  $2 who acts: by what, and the name
--
-- One row: since when the queue has been paused, and whether it was paused before.
WITH paused AS (
    INSERT INTO tenure.queues AS q (queue, paused_at)
    VALUES ($1, clock_timestamp())
        ON CONFLICT (queue) DO UPDATE
       SET paused_at = coalesce(q.paused_at, excluded.paused_at)
    RETURNING paused_at, paused_at < statement_timestamp() AS was_paused
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue)
    SELECT ($2::text[])[1], ($2::text[])[2], 'pause_queue', $1
      FROM paused
     WHERE NOT was_paused
)
SELECT paused_at, was_paused FROM paused
