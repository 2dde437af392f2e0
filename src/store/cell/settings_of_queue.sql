-- settings_of_queue: the limits and the pause of one queue, and the number of its last move.
--
--   $1 queue
SELECT max_running, max_queued, paused_at, moves FROM tenure.queues WHERE queue = $1
