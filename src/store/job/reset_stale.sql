-- reset_stale: the scanner resets silent jobs.
--
--   $1 ids: the jobs that scan_gate.sql found silent  $2 worker id of the scanner
--
-- Tests each job once more and resets it in one statement: a job that has reported or ended since stays as it is.
-- Locks the rows in order of id.
-- SKIP LOCKED is right here (compare claim.sql): a locked row has a live writer, or another scanner.
-- Made of parts: `scripts/statement reset_stale` prints it whole.
WITH locked AS MATERIALIZED (
    SELECT 'scanner' AS path, $2::text AS recovered_by,
-- include job/parts/silent_job.sql
     WHERE j.id = ANY ($1::uuid[])
       AND j.status = 'processing'
       AND statement_timestamp() NOT BETWEEN j.last_activity_at - j.stale_after AND j.last_activity_at + j.stale_after
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
)
-- include job/parts/end_attempt.sql
