-- call_quarantined: take from the list the jobs that need to wait no more, at most $1 of each kind, and one job of each kind
-- whose probe is due, but for which no job has come.
--
-- One row a job. The caller makes them due. If it dies before, they come by themselves once they have waited out their time.
-- What is gone meanwhile is taken from the list, too. A job of a paused queue is not tried: no worker may claim it.
WITH due AS (
    UPDATE tenure.quarantines
       SET called_at = clock_timestamp()
     WHERE kind = ANY (ARRAY(
               SELECT kind FROM tenure.quarantines
                WHERE began_at IS NOT NULL AND probe_job IS NULL
                  AND (next_probe_at <= statement_timestamp() OR next_probe_at > statement_timestamp() + probe_every)
                  AND (called_at IS NULL OR called_at < statement_timestamp() - interval '5 seconds')
                ORDER BY kind
                  FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING kind
), seen AS MATERIALIZED (
    SELECT w.kind, w.job_id, j.id IS NULL AS is_gone,
           EXISTS (SELECT FROM tenure.queues p WHERE p.queue = j.queue AND p.paused_at IS NOT NULL) AS is_paused
      FROM due
     CROSS JOIN LATERAL (SELECT kind, job_id FROM tenure.quarantined_jobs WHERE kind = due.kind ORDER BY job_id LIMIT 100) w
      LEFT JOIN LATERAL (SELECT id, queue FROM tenure.jobs
                          WHERE id = w.job_id AND status = 'queued' AND scheduled_at > statement_timestamp()) j ON true
), called AS MATERIALIZED (
    SELECT kind, job_id FROM seen WHERE is_gone
     UNION ALL
    (SELECT DISTINCT ON (kind) kind, job_id FROM seen WHERE NOT is_gone AND NOT is_paused ORDER BY kind, job_id)
     UNION ALL
    SELECT w.kind, w.job_id
      FROM tenure.quarantines q
     CROSS JOIN LATERAL (SELECT kind, job_id FROM tenure.quarantined_jobs WHERE kind = q.kind ORDER BY job_id LIMIT $1) w
     WHERE q.began_at IS NULL
)
DELETE FROM tenure.quarantined_jobs w
 WHERE w.kind = ANY (ARRAY(SELECT kind FROM called)) AND w.job_id = ANY (ARRAY(SELECT job_id FROM called))
RETURNING w.job_id
