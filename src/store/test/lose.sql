-- lose: reset a running job, as if its worker had been silent for too long. For tests.
--
--   $1 job id
--
-- No row: the job does not run. Like take_over.sql, but regardless of the owner's silence.
-- Made of parts: `scripts/statement lose` prints it whole.
WITH locked AS MATERIALIZED (
    SELECT format('worker lost: a test has declared %s dead', j.worker_id) AS error, 'lost' AS category,
           'scanner' AS path, 'declared dead by a test' AS reason, 'testing' AS recovered_by,
-- include job/parts/lost_job.sql
      FROM tenure.jobs j
     WHERE j.id = $1
       AND j.status = 'processing'
       FOR UPDATE OF j
)
-- include job/parts/end_attempt.sql
