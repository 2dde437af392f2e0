-- await_event: note that an attempt waits for an event, under the fence.
--
--   $1 job id  $2 token  $3 claim id  $4 the event's name  $5 how long the job waits for it, in seconds, or NULL
--
-- See migrations/functions/waits/await_event.sql.
SELECT answer, payload, left_s FROM tenure.await_event($1, $2, $3, $4, $5::float8 * interval '1 second')
