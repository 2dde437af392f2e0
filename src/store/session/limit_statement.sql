-- limit_statement: how long a statement of this transaction may take, in milliseconds.
--
--   $1 milliseconds, as text
SELECT set_config('statement_timeout', $1, true)
