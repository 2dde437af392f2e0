-- run_now: waiting jobs become due at once.
--
--   $1 ids  $2 who acts: by what, and the name; NULL: tenure itself
--
-- One row a job that waited for its time. The relay publishes it; a message that is already on its way does no harm.
-- A held job becomes due in its lane, and waits there for a slot, a token and its turn as the others do.
WITH waiting AS MATERIALIZED (
    SELECT id, queue, lane, coalesce(publish_at >= '9998-01-01 00:00:00+00', false) AS is_held
      FROM tenure.jobs
     WHERE id = ANY ($1::uuid[]) AND status = 'queued' AND scheduled_at > statement_timestamp()
     ORDER BY id
       FOR NO KEY UPDATE
), lined AS (
    UPDATE tenure.lane_jobs l
       SET due_at = clock_timestamp()
     WHERE l.job_id = ANY (ARRAY(SELECT id FROM waiting WHERE is_held)) AND l.due_at > statement_timestamp()
       -- What waits for other jobs or for an event goes on waiting.
       AND l.due_at < '9999-01-01 00:00:00+00'
    RETURNING l.job_id, l.queue, l.lane
), woken AS (
    INSERT INTO tenure.lane_wakes (at, queue, lane, job_id)
    SELECT clock_timestamp(), queue, lane, job_id FROM lined
), due AS (
    UPDATE tenure.jobs j
       SET scheduled_at = clock_timestamp(), publish_at = clock_timestamp(), published_at = NULL
      FROM waiting
     WHERE j.id = waiting.id AND NOT waiting.is_held
    RETURNING j.id, j.queue
), done AS (
    SELECT id, queue FROM due
     UNION ALL
    SELECT job_id, queue FROM lined
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue, subject, jobs)
    SELECT ($2::text[])[1], ($2::text[])[2], 'run_now', CASE WHEN min(queue) = max(queue) THEN min(queue) END,
           CASE WHEN count(*) = 1 THEN min(id::text) END, count(*)
      FROM done
     WHERE $2 IS NOT NULL
    HAVING count(*) > 0
)
SELECT id FROM done
