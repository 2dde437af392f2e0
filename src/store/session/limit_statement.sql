-- limit_statement: limit how long a statement of this transaction may take.
--
--   $1 milliseconds, as text
SELECT set_config('statement_timeout', $1, true)
