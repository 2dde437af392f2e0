-- put_off: notes that the job's message exists, but waits: for a worker that knows the kind, or until an old
-- handler in this process leaves its thread.
--
--   $1 job id  $2 seconds until the message comes again
--
-- Keeps the relay from taking the message for lost, and records when the job was first put off.
UPDATE tenure.jobs
   SET published_at  = clock_timestamp() + $2::float8 * interval '1 second',
       put_off_since = coalesce(put_off_since, clock_timestamp())
 WHERE id = $1 AND status = 'queued' AND published_at IS NOT NULL
