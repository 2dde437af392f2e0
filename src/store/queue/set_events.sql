-- set_events: set what workers publish of a queue's jobs.
--
--   $1 queue  $2 'ends', 'progress' or NULL: nothing
INSERT INTO tenure.queues AS q (queue, events) VALUES ($1, $2)
    ON CONFLICT (queue) DO UPDATE SET events = excluded.events
