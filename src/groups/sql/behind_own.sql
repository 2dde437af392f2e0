-- behind_own: one of these jobs that stands behind a job in its ordered lane, inside the transaction that creates them.
--
--   $1 the new jobs  $2 the job
--
-- It would start once that job has ended, which is to wait for it.
SELECT c.id, p.queue, c.lane
  FROM tenure.jobs p
  JOIN tenure.lane_settings s ON s.queue = p.queue AND s.ordered AND s.removed_at IS NULL
  JOIN tenure.jobs c ON c.queue = p.queue AND c.lane = p.lane
 WHERE p.id = $2 AND c.id = ANY ($1::uuid[])
 LIMIT 1
