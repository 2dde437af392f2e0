-- claim_skip: claim.sql for those of the jobs that nobody has locked. Of the others nothing is known: they are
-- asked for again, later.
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
 WHERE j.id = ANY (ARRAY (
           SELECT free.id FROM tenure.jobs free WHERE free.id = ANY ($1::uuid[])
            ORDER BY free.id FOR NO KEY UPDATE SKIP LOCKED))
   AND j.queue = $2
   AND j.kind = $3
   AND j.status = 'queued'
   AND j.scheduled_at <= statement_timestamp()
RETURNING j.id, j.fencing_token, j.claim_id, j.payload::text AS payload, j.attempt, j.max_attempts,
          j.checkpoint::text AS checkpoint, j.trace_context, j.dispatch
