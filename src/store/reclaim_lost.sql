-- reclaim_lost: jobs that wait for a message which no longer exists go back to the relay.
--
--   $1 queue  $2 published before  $3 row limit  $4 worker id of the relay
WITH lost AS MATERIALIZED (
    SELECT id, fencing_token, statement_timestamp() - published_at AS age FROM tenure.jobs
     WHERE queue = $1 AND published_at < $2 AND status = 'queued' AND scheduled_at <= statement_timestamp()
     ORDER BY published_at
     LIMIT $3
       FOR NO KEY UPDATE SKIP LOCKED
), reclaimed AS (
    UPDATE tenure.jobs j
       SET publish_at = clock_timestamp(), published_at = NULL, clear_reason = 'its message was lost'
      FROM lost
     WHERE j.id = lost.id
)
INSERT INTO tenure.recovery_events (event, path, job_id, fencing_token, silence, reason, recovered_by)
SELECT 'republished', 'relay', id, fencing_token, age, 'its message was lost', $4 FROM lost
RETURNING id
