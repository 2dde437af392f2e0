-- limit_transaction: limit how long this transaction may sit idle, how long each statement of it may run, and,
-- from Postgres 17 on, how long it may last in all.
--
--   $1 a duration, as in '75000ms'
SELECT set_config(name, $1, true)
  FROM pg_catalog.pg_settings
 WHERE name IN ('idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout')
