-- report_quarantine: add a worker's counts, and note the jobs that it has snoozed.
--
--   $1 kinds, $2 attempts ended, $3 of them failed: since its last report
--   $4 kinds, $5 jobs: snoozed since then
--
-- A kind whose rule is gone adds nothing. In the order of kinds, so that workers that report at once never deadlock.
WITH counted AS (
    INSERT INTO tenure.quarantine_counts AS c (kind, at, ended, failed)
    SELECT q.kind, greatest(date_bin(q.within / 60, clock_timestamp(), 'epoch'), q.counted_from), n.ended, n.failed
      FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS n (kind, ended, failed)
      JOIN tenure.quarantines q ON q.kind = n.kind AND q.removed_at IS NULL
     ORDER BY q.kind
        ON CONFLICT (kind, at) DO UPDATE SET ended = c.ended + excluded.ended, failed = c.failed + excluded.failed
)
INSERT INTO tenure.quarantined_jobs (kind, job_id)
SELECT q.kind, n.job_id
  FROM unnest($4::text[], $5::uuid[]) AS n (kind, job_id)
  JOIN tenure.quarantines q ON q.kind = n.kind
 ORDER BY q.kind, n.job_id
    ON CONFLICT DO NOTHING
