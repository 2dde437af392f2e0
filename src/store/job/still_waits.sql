-- still_waits: this job's message has come while its queue ran as many jobs as it may, and comes again within a second.
--
--   $1 job id  $2 seconds
--
-- Keeps the relay from taking the message for lost. Not written each time that it comes; and a claim, or the relay, that
-- has the row locked knows more.
UPDATE tenure.jobs
   SET published_at = clock_timestamp()
 WHERE id = (SELECT id FROM tenure.jobs
              WHERE id = $1 AND status = 'queued' AND published_at < clock_timestamp() - $2::float8 * interval '1 second'
                FOR NO KEY UPDATE SKIP LOCKED)
