-- tend_lanes: release what may go, of all queues with lanes. The relay calls it at each look, and publishes the jobs.
--
--   $1 the most jobs of each queue  $2 whether to look for slots whose jobs ended unseen
--
-- A row without an id: the lanes of its queue could not be looked after, for the reason in clear_reason; without a
-- queue: there is more to do.
-- See migrations/functions/lanes/tend_lanes.sql.
SELECT id, queue, kind, dispatch, clear_reason, trace_context FROM tenure.tend_lanes($1, $2)
