-- measure: count live jobs and submissions by queue, and measure the fleet. The worker that scans runs it, once every
-- scan, so that no other worker has to count.
--
--   $1 queues  $2 kinds  $3 messages: how many the stream holds of each; NULL: NATS did not answer
--   $4 for how many seconds the counts of the stream hold, if no other scan follows
--
-- One row a kind with submissions, and one a kind that no live worker runs: these first, at most 200.
-- A claim leaves publish_at as it is: a running job waits for no publication.
-- It ends the scan: however long that took, the gap to the next one begins here.
-- include recover/parts/waiting.sql
, counted AS MATERIALIZED (
    SELECT queue, sum(due)::bigint AS due, sum(scheduled)::bigint AS scheduled, sum(processing)::bigint AS processing,
           sum(submitted)::bigint AS submitted, min(oldest_due_at) AS oldest_due_at, min(relay_due_at) AS relay_due_at
      FROM of_kind
     GROUP BY queue
), put AS (
    INSERT INTO tenure.queue_stats AS s (queue, due, scheduled, processing, oldest_due_at, submitted, submitted_until)
    SELECT queue, due, scheduled, processing, oldest_due_at, submitted,
           clock_timestamp() + $4::float8 * interval '1 second'
      FROM counted ORDER BY queue
        ON CONFLICT (queue) DO UPDATE
       SET due = excluded.due, scheduled = excluded.scheduled, processing = excluded.processing,
           oldest_due_at = excluded.oldest_due_at, submitted = excluded.submitted,
           submitted_until = excluded.submitted_until,
           -- note_waiting.sql follows and knows better.
           oldest_submitted_at = CASE WHEN excluded.submitted > 0 THEN s.oldest_submitted_at END
), gone AS (
    DELETE FROM tenure.queue_stats WHERE queue NOT IN (SELECT queue FROM counted)
), scanned AS (
    UPDATE tenure.scanner_state
       SET measured_at = clock_timestamp(), last_scan_at = clock_timestamp(),
           dead = (SELECT count(*) FROM tenure.dead_letter_jobs),
           relay_due_at = (SELECT min(relay_due_at) FROM counted),
           stream_until = CASE WHEN $1::text[] IS NOT NULL
                               THEN clock_timestamp() + $4::float8 * interval '1 second' END
)
SELECT queue, kind, due, submitted, oldest_due_s, is_queue_served, is_served
  FROM waiting
 WHERE submitted > 0 OR NOT is_served
 ORDER BY is_served, due + coalesce(submitted, 0) DESC, queue, kind
 LIMIT 200
