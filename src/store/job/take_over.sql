-- take_over: a worker that receives a job's message again resets the job if its owner was silent for too long. The
-- backstop that works even if every scanner is dead.
--
--   $1 job id  $2 worker id of the caller  $3 scan_every in seconds  $4 seconds for which the caller has had Postgres
--
-- No row: the owner lives, or all owners have time to write after an outage: a grace lasts, or no worker has scanned
-- since the outage, and the next scan is about to start a grace (compare scan_gate.sql). If no scan comes any more, the
-- owner has had that time once the caller has had Postgres for as long.
-- Waits for the row lock (compare reset_stale.sql): the owner's heartbeat may hold it.
-- Made of parts: `scripts/statement take_over` prints it whole.
WITH locked AS MATERIALIZED (
    SELECT 'redelivery' AS path, $2::text AS recovered_by,
-- include job/parts/silent_job.sql
     WHERE j.id = $1
       AND j.status = 'processing'
       AND j.last_activity_at + j.stale_after < statement_timestamp()
       AND NOT EXISTS (
           SELECT FROM tenure.scanner_state s
            WHERE s.grace_until > statement_timestamp()
               OR j.stale_after > $4::float8 * interval '1 second'
                  AND (s.server_started_at <> pg_postmaster_start_time()
                    OR s.last_scan_at < statement_timestamp()
                                        - least(3 * $3::float8 * interval '1 second',
                                                greatest(1.5 * $3::float8 * interval '1 second',
                                                         j.stale_after - $3::float8 * interval '1 second'))))
       FOR UPDATE OF j
)
-- include job/parts/end_attempt.sql
