-- call_quarantined: take from the list the jobs that need to wait no more, at most $1, and one job of each kind whose probe
-- is due, but for which no job has come.
--
-- One row a job. The caller makes them due. If it dies before, they come by themselves once they have waited out their time.
WITH due AS (
    UPDATE tenure.quarantines
       SET called_at = clock_timestamp()
     WHERE began_at IS NOT NULL AND probe_job IS NULL AND next_probe_at <= statement_timestamp()
       AND (called_at IS NULL OR called_at < statement_timestamp() - interval '5 seconds')
    RETURNING kind
), called AS (
    SELECT w.kind, w.job_id
      FROM due
     CROSS JOIN LATERAL (SELECT kind, job_id FROM tenure.quarantined_jobs WHERE kind = due.kind ORDER BY job_id LIMIT 1) w
     UNION ALL
    (SELECT w.kind, w.job_id
       FROM tenure.quarantines q
       JOIN tenure.quarantined_jobs w ON w.kind = q.kind
      WHERE q.began_at IS NULL
      LIMIT $1)
)
DELETE FROM tenure.quarantined_jobs w
 USING called
 WHERE w.kind = called.kind AND w.job_id = called.job_id
RETURNING w.job_id
