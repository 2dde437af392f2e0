-- nodes: what a drawing of a group shows of its jobs.
--
--   $1 ids
SELECT j.id, j.queue, j.kind, j.status, j.progress, coalesce(j.publish_at >= '9998-01-01 00:00:00+00', false) AS is_held
  FROM tenure.jobs j WHERE j.id = ANY ($1::uuid[])
 UNION ALL
SELECT h.id, h.queue, h.kind, h.status, h.progress, false
  FROM tenure.job_history h WHERE h.id = ANY ($1::uuid[])
 UNION ALL
SELECT d.id, d.queue, d.kind, 'failed', d.progress, false
  FROM tenure.dead_letter_jobs d WHERE d.id = ANY ($1::uuid[])
