-- settings_of_queue: the limits and the pause of one queue.
--
--   $1 queue
SELECT max_running, max_queued, paused_at FROM tenure.queues WHERE queue = $1
