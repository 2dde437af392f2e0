-- claim: take ownership of jobs that are queued and due, or touch nothing.
--
--   $1 ids (sorted, no duplicates); one id for claim_one.sql  $2 queue  $3 kind: what the messages' subjects say
--   $4 stale_after in seconds  $5 what becomes of each when its worker is lost: 'retry' or 'dead_letter'
--   $6 worker id  $7 worker host
--
-- Followed by claim_wait.sql, claim_one.sql or claim_skip.sql, which say by which ids; by claim_unlimited.sql or
-- claim_limited.sql, which say of which queues; then by claim_won.sql.
-- One row a job: now ours, under its new token. No row: not ours; ask missed.sql why.
--
-- Claims of one job queue up on its row lock. When the winner commits, the others re-read the row,
-- find it processing and match nothing. SKIP LOCKED would be wrong here: the caller acks its message on
-- the strength of this verdict, so it has to wait for the verdict.
-- But not for long: after 100 ms the statement gives up (55P03), and claim_skip.sql claims what is free, so
-- that one locked row holds up nobody else. The limit ends with the statement, a transaction of its own.
-- One table and no join: whatever the statistics say, there is no other way to the rows than by their ids.
-- (Joined with a list, a table that looked empty when the plan was made was walked once for each job.)
-- The claim id is random: the tokens alone could repeat after an asynchronous failover.
-- No indexed column changes: the update is HOT. All times are the database's.
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
