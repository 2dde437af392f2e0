-- leave_turns: a worker that stops need not be waited for.
--
--   $1 worker id
--
-- A row for each turn that is free now.
UPDATE tenure.turns SET until = statement_timestamp()
 WHERE worker_id = $1 AND until > statement_timestamp()
RETURNING turn
