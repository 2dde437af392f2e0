-- claim_one: claim.sql for one job: in a third of its time, when a worker is idle and every part of a
-- millisecond shows.
--
--   $1 id  $2 claim id  $3 queue  $4 kind  $5 stale_after in seconds  $6 on_crash  $7 worker id  $8 worker host
UPDATE tenure.jobs j
   SET status           = 'processing',
       attempt          = j.attempt + 1,
       fencing_token    = j.fencing_token + 1,
       claim_id         = $2,
       worker_id        = $7,
       worker_host      = $8,
       stale_after      = $5::float8 * interval '1 second',
       on_crash         = $6,
       last_activity_at = clock_timestamp(),
       started_at       = clock_timestamp(),
       stage            = NULL,
       progress         = NULL,
       message          = NULL,
       clear_reason     = NULL,
       put_off_since    = NULL
 WHERE (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL
   AND j.id = $1
   AND j.queue = $3
   AND j.kind = $4
   AND j.status = 'queued'
   AND j.scheduled_at <= statement_timestamp()
RETURNING j.id, j.fencing_token, j.claim_id, j.payload::text AS payload, j.attempt, j.max_attempts,
          j.checkpoint::text AS checkpoint, j.trace_context, j.dispatch
