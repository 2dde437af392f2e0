-- known_jobs: of the jobs that messages name, those that have a row or have ended, and whether they are live.
--
--   $1 ids
--
-- At most a few thousand ids a scan, each found by primary key.
SELECT id, true AS is_live FROM tenure.jobs WHERE id = ANY ($1::uuid[])
 UNION ALL
SELECT id, false FROM tenure.job_history WHERE id = ANY ($1::uuid[])
 UNION ALL
SELECT id, false FROM tenure.dead_letter_jobs WHERE id = ANY ($1::uuid[])
 UNION ALL
-- Of a kind that keeps no history.
SELECT job_id, false FROM tenure.job_keys WHERE job_id = ANY ($1::uuid[]) AND ended_at IS NOT NULL
