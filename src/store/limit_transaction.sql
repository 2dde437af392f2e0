-- limit_transaction: how long this transaction may sit idle, and how long each statement of it may run.
--
--   $1 a duration, as in '75000ms'
SELECT set_config('idle_in_transaction_session_timeout', $1, true), set_config('statement_timeout', $1, true)
