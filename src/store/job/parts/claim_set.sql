-- claim_set: sets the job to running, under a new token.
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
