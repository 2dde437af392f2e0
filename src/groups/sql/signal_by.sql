-- signal_by: tell a job of an event, as a person.
--
--   $1 job id  $2 the event's name  $3 its payload (JSON text)  $4 who acts: by what, and the name
--
-- See migrations/functions/waits/signal_by.sql.
SELECT tenure.signal_by($1, $2, $3::jsonb, ($4::text[])[1], ($4::text[])[2]) AS answer
