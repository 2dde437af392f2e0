-- set_events: set what workers publish of a queue's jobs.
--
--   $1 queue  $2 'ends', 'progress' or NULL: nothing  $3 who acts: by what, and the name
WITH before AS MATERIALIZED (
    SELECT events FROM tenure.queues WHERE queue = $1
), said AS (
    INSERT INTO tenure.queues AS q (queue, events) VALUES ($1, $2)
        ON CONFLICT (queue) DO UPDATE SET events = excluded.events
    RETURNING events
)
INSERT INTO tenure.audit (via, actor, act, queue, details)
SELECT ($3::text[])[1], ($3::text[])[2], 'set_events', $1, jsonb_build_object('events', coalesce(s.events, 'nothing'))
  FROM said s LEFT JOIN before b ON true
 WHERE s.events IS DISTINCT FROM b.events
