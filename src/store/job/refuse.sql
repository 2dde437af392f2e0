-- refuse: a submission that cannot be a job goes to the dead letters with its bytes, once: a redelivery
-- derives the same id.
--
--   $1 id  $2 queue  $3 kind  $4 subject  $5 raw payload  $6 category  $7 the reason  $8 when it was published
--
-- One row: whether the job exists already. Then a worker with other limits has accepted the submission, and may have
-- died since, and the statement refuses nothing.
WITH known AS (
    SELECT FROM tenure.job_keys WHERE job_id = $1
), refused AS (
    INSERT INTO tenure.dead_letter_jobs (id, queue, kind, raw_payload, subject, attempt, max_attempts, fencing_token,
           created_at, scheduled_at, died_at, last_error, category, execution_history)
    SELECT $1, $2, $3, $5, $4, 0, 1, 0, $8, $8, clock_timestamp(), $7, $6, '[]'
     WHERE NOT EXISTS (SELECT FROM known)
    ON CONFLICT (id) DO NOTHING
)
SELECT EXISTS (SELECT FROM known) AS is_known
