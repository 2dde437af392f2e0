-- claim: take ownership of jobs that are queued and due, or touch nothing.
--
--   $1 ids (no duplicates)  $2 claim ids  $3 stale_after in seconds  $4 ordinals
--   $5 worker id  $6 worker host  $7 queues  $8 kinds: what the messages' subjects say
--   $9 what becomes of each when its worker is lost: 'retry' or 'dead_letter'
--
-- One row a job: now ours, under its new token. No row: not ours; ask missed.sql why.
--
-- Claims of one job queue up on its row lock. When the winner commits, the others re-read the row,
-- find it processing and match nothing. SKIP LOCKED would be wrong here: the caller acks its message on
-- the strength of this verdict, so it has to wait for the verdict.
-- Rows are locked in order of id, whatever the plan, as a cancellation locks them.
-- No indexed column changes: the update is HOT. All times are the database's.
WITH free AS MATERIALIZED (
    SELECT u.*
      FROM unnest($1::uuid[], $2::uuid[], $3::float8[], $4::int[], $7::text[], $8::text[], $9::text[])
           AS u(id, claim_id, stale_after_s, ord, queue, kind, on_crash)
      JOIN tenure.jobs j ON j.id = u.id
     WHERE j.queue = u.queue
       AND j.kind = u.kind
       AND j.status = 'queued'
       AND j.scheduled_at <= statement_timestamp()
     ORDER BY j.id
       FOR NO KEY UPDATE OF j
)
UPDATE tenure.jobs j
   SET status           = 'processing',
       attempt          = j.attempt + 1,
       fencing_token    = j.fencing_token + 1,
       claim_id         = free.claim_id,
       worker_id        = $5,
       worker_host      = $6,
       stale_after      = free.stale_after_s * interval '1 second',
       on_crash         = free.on_crash,
       last_activity_at = clock_timestamp(),
       started_at       = clock_timestamp(),
       stage            = NULL,
       progress         = NULL,
       message          = NULL,
       clear_reason     = NULL,
       put_off_since    = NULL
  FROM free
 WHERE j.id = free.id
RETURNING free.ord, j.id, j.queue, j.kind, j.payload::text AS payload, j.attempt, j.max_attempts,
          j.fencing_token, j.claim_id, j.checkpoint::text AS checkpoint, j.trace_context, j.dispatch,
          j.created_at
