-- settings_of_queue: the limits, the events and the pause of one queue, and the number of its last move.
--
--   $1 queue
SELECT max_running, max_queued, events, paused_at, moves FROM tenure.queues WHERE queue = $1
