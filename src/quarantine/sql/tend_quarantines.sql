-- tend_quarantines: begin and end quarantines.
--
-- One row a change: the kind, what has happened (`began`, `ended`, `failed`: its probe), and the attempts.
-- What was counted ahead of the clock, which has stepped back, begins none.
-- A probe that is given back or cancelled decides nothing, and the next one is due at once; after one that snoozes, sleeps
-- or waits, in its time. One whose row is gone has completed, if its kind keeps no history.
-- Two workers at once change nothing twice: each passes over the rules that the other has locked.
WITH free AS MATERIALIZED (
    SELECT kind FROM tenure.quarantines ORDER BY kind FOR NO KEY UPDATE SKIP LOCKED
), counted AS (
    SELECT q.kind, sum(c.ended)::bigint AS ended, sum(c.failed)::bigint AS failed
      FROM tenure.quarantines q
      JOIN tenure.quarantine_counts c
        ON c.kind = q.kind AND c.at >= greatest(statement_timestamp() - q.within, q.counted_from)
       AND c.at <= statement_timestamp()
     WHERE q.began_at IS NULL AND q.removed_at IS NULL AND q.kind IN (SELECT kind FROM free)
     GROUP BY q.kind
), begun AS (
    UPDATE tenure.quarantines q
       SET began_at = clock_timestamp(), ended = c.ended, failed = c.failed, probes = 0, last_probe = NULL,
           next_probe_at = clock_timestamp() + q.probe_every, called_at = NULL
      FROM counted c
     WHERE q.kind = c.kind AND q.began_at IS NULL AND q.removed_at IS NULL AND c.ended >= q.attempts AND c.failed > q.share * c.ended + 1e-9
    RETURNING q.kind, q.ended, q.failed
), probed AS (
    SELECT q.kind, q.probe_job, q.probe_token,
           CASE WHEN EXISTS (SELECT FROM tenure.job_executions e
                              WHERE e.job_id = q.probe_job AND e.fencing_token = q.probe_token
                                AND e.outcome IN ('retried', 'failed', 'lost'))
                  OR EXISTS (SELECT FROM tenure.dead_letter_jobs d
                              WHERE d.id = q.probe_job AND d.fencing_token = q.probe_token) THEN 'failed'
                WHEN j.status = 'processing' AND j.fencing_token = q.probe_token THEN NULL
                WHEN j.id IS NOT NULL THEN 'undecided'
                WHEN h.id IS NOT NULL AND (h.status <> 'completed' OR h.fencing_token <> q.probe_token) THEN 'undecided'
                WHEN h.id IS NOT NULL OR q.probe_keeps_nothing THEN 'completed'
                ELSE 'undecided' END AS how,
           EXISTS (SELECT FROM tenure.job_executions e
                    WHERE e.job_id = q.probe_job AND e.fencing_token = q.probe_token AND e.outcome = 'snoozed') AS snoozed
      FROM tenure.quarantines q
      LEFT JOIN tenure.jobs j ON j.id = q.probe_job
      LEFT JOIN LATERAL (SELECT id, status, fencing_token FROM tenure.job_history WHERE id = q.probe_job LIMIT 1) h ON true
     WHERE q.probe_job IS NOT NULL AND q.kind IN (SELECT kind FROM free)
), judged AS (
    UPDATE tenure.quarantines q
       SET probe_job = NULL, probe_token = NULL, last_probe = p.how, called_at = NULL,
           began_at = CASE WHEN p.how <> 'completed' THEN q.began_at END,
           counted_from = CASE WHEN p.how = 'completed' THEN clock_timestamp() ELSE q.counted_from END,
           next_probe_at = CASE WHEN p.how = 'completed' THEN NULL
                                WHEN p.how = 'failed' OR p.snoozed THEN clock_timestamp() + q.probe_every
                                ELSE clock_timestamp() END
      FROM probed p
     WHERE q.kind = p.kind AND p.how IS NOT NULL AND q.probe_job = p.probe_job AND q.probe_token = p.probe_token
    RETURNING q.kind, q.ended, q.failed, p.how
), forgotten AS (
    DELETE FROM tenure.quarantine_counts c
     WHERE c.at < coalesce((SELECT statement_timestamp() - q.within * 1.1 FROM tenure.quarantines q WHERE q.kind = c.kind),
                           'infinity')
)
SELECT kind, 'began' AS change, ended, failed FROM begun
 UNION ALL
SELECT kind, CASE how WHEN 'completed' THEN 'ended' ELSE how END, ended, failed FROM judged
