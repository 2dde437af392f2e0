-- measure: count live jobs by queue, and measure the fleet. The worker that scans runs it, once every scan, so that no
-- other worker has to count. A claim leaves publish_at as it is: a running job waits for no publication.
-- It ends the scan: however long that took, the gap to the next one begins here.
WITH counted AS MATERIALIZED (
    SELECT queue,
           count(*) FILTER (WHERE status = 'queued' AND scheduled_at <= statement_timestamp()) AS due,
           count(*) FILTER (WHERE status = 'queued' AND scheduled_at > statement_timestamp()) AS scheduled,
           count(*) FILTER (WHERE status = 'processing') AS processing,
           min(scheduled_at) FILTER (WHERE status = 'queued' AND scheduled_at <= statement_timestamp()) AS oldest_due_at,
           min(scheduled_at) FILTER (WHERE status = 'queued' AND publish_at IS NOT NULL AND scheduled_at <= statement_timestamp())
               AS relay_due_at
      FROM tenure.jobs
     GROUP BY queue
), put AS (
    INSERT INTO tenure.queue_stats AS s (queue, due, scheduled, processing, oldest_due_at)
    SELECT queue, due, scheduled, processing, oldest_due_at FROM counted ORDER BY queue
        ON CONFLICT (queue) DO UPDATE
       SET due = excluded.due, scheduled = excluded.scheduled, processing = excluded.processing,
           oldest_due_at = excluded.oldest_due_at
), gone AS (
    DELETE FROM tenure.queue_stats WHERE queue NOT IN (SELECT queue FROM counted)
)
UPDATE tenure.scanner_state
   SET measured_at = clock_timestamp(), last_scan_at = clock_timestamp(), dead = (SELECT count(*) FROM tenure.dead_letter_jobs),
       relay_due_at = (SELECT min(relay_due_at) FROM counted)
