-- signal: tell a job of an event.
--
--   $1 job id  $2 the event's name  $3 its payload (JSON text)
--
-- See migrations/functions/waits/signal.sql.
SELECT tenure.signal($1, $2, $3::jsonb) AS answer
