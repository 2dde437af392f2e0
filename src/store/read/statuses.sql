-- statuses: the status of jobs. No row: the job does not exist.
--
--   $1 ids  $2 ordinals
SELECT u.ord, s.status
  FROM unnest((SELECT $1::uuid[]), $2::int[]) AS u(id, ord)
  JOIN LATERAL (
       SELECT j.status FROM tenure.jobs j WHERE j.id = u.id
       UNION ALL
       SELECT h.status FROM tenure.job_history h WHERE h.id = u.id
       UNION ALL
       SELECT 'failed' FROM tenure.dead_letter_jobs d WHERE d.id = u.id
       LIMIT 1) s ON true
