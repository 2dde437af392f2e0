-- limit_idle: limit how long this transaction may sit idle before the server ends it: a worker that freezes
-- between the fence and the commit must not hold the job's row for ever.
--
--   $1 a duration, as in '150s'
SELECT set_config('idle_in_transaction_session_timeout', $1, true)
