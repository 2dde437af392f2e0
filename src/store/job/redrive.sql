-- redrive: dead jobs go back to the queue, under the same id.
--
--   $1 ids  $2 who acts: by what, and the name
--
-- One row a redriven job. What that means for its attempts, its token and its group: `tenure.redrive` in
-- migrations/functions/redrives/redrive.sql.
WITH redriven AS MATERIALIZED (
    SELECT id FROM tenure.redrive($1) AS id
), acted AS MATERIALIZED (
    -- As the statement began, its dead letter was there, unless it has just died.
    SELECT r.id, d.queue FROM redriven r LEFT JOIN tenure.dead_letter_jobs d ON d.id = r.id
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue, subject, jobs)
    SELECT ($2::text[])[1], ($2::text[])[2], 'redrive', CASE WHEN min(queue) = max(queue) THEN min(queue) END,
           CASE WHEN count(*) = 1 THEN min(id::text) END, count(*)
      FROM acted
     WHERE $2 IS NOT NULL
    HAVING count(*) > 0
)
SELECT id FROM redriven
