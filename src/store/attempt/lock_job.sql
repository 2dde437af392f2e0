-- lock_job: the first statement of a transaction whose snapshot lasts. Until that transaction ends, no other
-- session can reset the job or end it.
--
--   $1 job id  $2 token  $3 claim id
--
-- No row: this worker no longer owns the job. Else the row identifies this transaction for end_transaction.sql.
-- Also the last statement: its answer proves that the transaction was not aborted in between.
-- KEY SHARE stops only statements that lock the row to end its attempt: progress goes on.
SELECT id, pg_backend_pid() AS pid, now() AS began FROM tenure.jobs
 WHERE id = $1 AND fencing_token = $2 AND claim_id = $3 AND status = 'processing'
   FOR KEY SHARE
