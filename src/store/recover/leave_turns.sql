-- leave_turns: end the turns of a worker that stops, so that no other worker waits for their end.
--
--   $1 worker id
--
-- One row for each turn that is free now.
UPDATE tenure.turns SET until = statement_timestamp()
 WHERE worker_id = $1 AND until > statement_timestamp()
RETURNING turn
