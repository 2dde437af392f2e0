-- claim_one: claim.sql for one job: in a third of its time, when a worker is idle and every part of a
-- millisecond shows.
--
--   $1 id  $2 queue  $3 kind  $4 stale_after in seconds  $5 on_crash  $6 worker id  $7 worker host
UPDATE tenure.jobs j
   SET status           = 'processing',
       attempt          = j.attempt + 1,
       fencing_token    = j.fencing_token + 1,
       claim_id         = gen_random_uuid(),
       worker_id        = $6,
       worker_host      = $7,
       stale_after      = $4::float8 * interval '1 second',
       on_crash         = $5,
       last_activity_at = clock_timestamp(),
       started_at       = clock_timestamp(),
       stage            = NULL,
       progress         = NULL,
       message          = NULL,
       clear_reason     = NULL,
       put_off_since    = NULL
 WHERE (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL
   AND j.id = $1
   AND j.queue = $2
   AND j.kind = $3
   AND j.status = 'queued'
   AND j.scheduled_at <= statement_timestamp()
RETURNING j.id, j.fencing_token, j.claim_id, j.payload::text AS payload, j.attempt, j.max_attempts,
          j.checkpoint::text AS checkpoint, j.trace_context, j.dispatch
