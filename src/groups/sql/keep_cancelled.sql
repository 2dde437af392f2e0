-- keep_cancelled: keep a redrive from bringing back those of these jobs that a failure before them has cancelled.
--
--   $1 ids  $2 who acts: by what, and the name
--
-- After cancel.sql has found no row of them. One that comes back meanwhile is live then: cancel it.
-- See migrations/functions/groups/keep_cancelled.sql.
INSERT INTO tenure.audit (via, actor, act, queue, subject, jobs)
SELECT ($2::text[])[1], ($2::text[])[2], 'cancel', CASE WHEN min(h.queue) = max(h.queue) THEN min(h.queue) END,
       CASE WHEN count(*) = 1 THEN min(k.id::text) END, count(*)
  FROM tenure.keep_cancelled($1::uuid[]) AS k (id)
  LEFT JOIN tenure.job_history h ON h.id = k.id
HAVING count(*) > 0
