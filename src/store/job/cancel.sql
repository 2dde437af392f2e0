-- cancel: queued jobs are cancelled; the workers of running ones are asked to cancel theirs.
--
--   $1 ids  $2 who acts: by what, and the name; NULL: tenure itself
--
-- One row a live job: route 'cancelled', or 'asked' with its worker. A job without a row is not live.
-- The worker of a running job ends it; if the worker is dead, the recovery that resets the job does: every way
-- back to the queue ends in 'cancelled' once cancellation was asked for.
-- One without a row may be a follower that a failure has cancelled: keep_cancelled.sql.
-- NO KEY UPDATE: a handler's repeatable-read transaction protects its row from a reset, but not from this.
-- Made of parts: `scripts/statement cancel` prints it whole.
WITH picked AS MATERIALIZED (
    SELECT j.status,
-- include job/parts/locked_job.sql
      FROM tenure.jobs j
     WHERE j.id = ANY ($1::uuid[])
     ORDER BY j.id
       FOR NO KEY UPDATE OF j
), asked AS (
    UPDATE tenure.jobs j
       SET cancel_requested_at = coalesce(j.cancel_requested_at, clock_timestamp())
      FROM picked
     WHERE j.id = picked.id AND picked.status = 'processing'
    RETURNING j.id, j.queue, j.kind, j.fencing_token, j.worker_id
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue, subject, jobs)
    SELECT ($2::text[])[1], ($2::text[])[2], 'cancel', CASE WHEN min(queue) = max(queue) THEN min(queue) END,
           CASE WHEN count(*) = 1 THEN min(id::text) END, count(*)
      FROM picked
     WHERE $2 IS NOT NULL AND (status = 'queued' OR cancel_requested_at IS NULL)
    HAVING count(*) > 0
), locked AS MATERIALIZED (
    SELECT 0 AS ord, 'cancelled' AS verdict, NULL::text AS error, NULL::text AS category,
           0::float8 AS delay_s, NULL::text AS path, NULL::text AS reason, NULL::text AS recovered_by,
           NULL::interval AS silence,
-- include job/parts/locked_job.sql
      FROM picked j
     WHERE j.status = 'queued'
)
-- include job/parts/end_attempt.sql
UNION ALL
SELECT 0, id, queue, kind, fencing_token, worker_id, 'asked', NULL::text, NULL::float8, NULL::boolean FROM asked
