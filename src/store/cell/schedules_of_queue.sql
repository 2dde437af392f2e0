-- schedules_of_queue: the schedules of a queue, whole.
--
--   $1 queue
SELECT to_json(s)::text AS schedule, name, changed_at FROM tenure.schedules s WHERE queue = $1 ORDER BY name
