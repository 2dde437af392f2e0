-- claim: take ownership of jobs that are queued and due, or touch nothing.
--
--   $1 ids (sorted, no duplicates)  $2 claim ids
--   $3 places in the next four: what jobs of one kind have in common is sent once
--   $4 queues  $5 kinds: what the messages' subjects say  $6 stale_after in seconds
--   $7 what becomes of each when its worker is lost: 'retry' or 'dead_letter'
--   $8 worker id  $9 worker host
--
-- One row a job: now ours, under its new token. No row: not ours; ask missed.sql why.
--
-- Claims of one job queue up on its row lock. When the winner commits, the others re-read the row,
-- find it processing and match nothing. SKIP LOCKED would be wrong here: the caller acks its message on
-- the strength of this verdict, so it has to wait for the verdict.
-- But not for long: after 100 ms the statement gives up (55P03), and its halves are tried, so that one locked
-- row holds up nobody else. The limit ends with the statement, which is a transaction of its own.
-- Few arrays: each costs a pass of its own. (SELECT $1), not $1: with a length that the planner can see,
-- statements of one row would be planned anew every time.
-- No indexed column changes: the update is HOT. All times are the database's.
UPDATE tenure.jobs j
   SET status           = 'processing',
       attempt          = j.attempt + 1,
       fencing_token    = j.fencing_token + 1,
       claim_id         = u.claim_id,
       worker_id        = $8,
       worker_host      = $9,
       stale_after      = ($6::float8[])[u.shape] * interval '1 second',
       on_crash         = ($7::text[])[u.shape],
       last_activity_at = clock_timestamp(),
       started_at       = clock_timestamp(),
       stage            = NULL,
       progress         = NULL,
       message          = NULL,
       clear_reason     = NULL,
       put_off_since    = NULL
  FROM unnest((SELECT $1::uuid[]), $2::uuid[], $3::int[]) WITH ORDINALITY AS u(id, claim_id, shape, ord)
 WHERE (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL
   AND j.id = u.id
   AND j.queue = ($4::text[])[u.shape]
   AND j.kind = ($5::text[])[u.shape]
   AND j.status = 'queued'
   AND j.scheduled_at <= statement_timestamp()
RETURNING (u.ord - 1)::int AS ord, j.id, j.fencing_token, j.claim_id, j.payload::text AS payload, j.attempt, j.max_attempts,
          j.checkpoint::text AS checkpoint, j.trace_context, j.dispatch
