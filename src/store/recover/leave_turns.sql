-- leave_turns: end the turns of a worker that stops, so that no other worker waits for their end: also if the clock steps
-- back meanwhile.
--
--   $1 worker id
--
-- One row for each turn that is free now.
UPDATE tenure.turns SET until = '-infinity'
 WHERE worker_id = $1 AND until > statement_timestamp()
RETURNING turn
