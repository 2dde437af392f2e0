-- measure: count live jobs by queue, and what the stream holds beside them. One process of the fleet runs it, once
-- every scan, so that no other has to count.
--
--   $1 queues  $2 kinds  $3 messages  $4 jobs: what the stream holds of each; NULL: NATS did not answer
--   $5 for how many seconds the counts of the stream hold, if no other scan follows
--   $6 whether this ends a scan: however long that took, the gap to the next one begins here. A process that only
--      measures says no, or the next scan would miss the gap, and reset jobs of live owners
--
-- Rows: a kind with submissions, or with jobs that were put off, or one that no live worker runs, these first, at most
-- 200; and, with a NULL kind, each queue with submissions: all of its queued jobs, and its max_queued. note_waiting.sql
-- then writes what has been found out about the submissions.
-- A claim leaves publish_at as it is: a running job waits for no publication.
-- Made of parts: `scripts/statement measure` prints it whole.
-- include recover/parts/waiting.sql
, counted AS MATERIALIZED (
    SELECT queue, sum(due)::bigint AS due, sum(scheduled)::bigint AS scheduled, sum(processing)::bigint AS processing,
           sum(held)::bigint AS held,
           sum(submitted)::bigint AS submitted, min(oldest_due_at) AS oldest_due_at, min(relay_due_at) AS relay_due_at
      FROM of_kind
     GROUP BY queue
), lanes AS MATERIALIZED (
    SELECT queue, sum(due)::bigint AS due, count(*) FILTER (WHERE due > 0) AS waiting
      FROM (SELECT queue, lane, count(*) FILTER (WHERE due_at <= statement_timestamp()) AS due
              FROM tenure.lane_jobs GROUP BY queue, lane) AS of_lane
     GROUP BY queue
), put AS (
    INSERT INTO tenure.queue_stats (queue, due, scheduled, processing, held, held_due, lanes_waiting, oldest_due_at)
    SELECT queue, c.due, scheduled, processing, held, coalesce(l.due, 0), coalesce(l.waiting, 0), oldest_due_at
      FROM counted c LEFT JOIN lanes l USING (queue) ORDER BY queue
        ON CONFLICT (queue) DO UPDATE
       SET due = excluded.due, scheduled = excluded.scheduled, processing = excluded.processing,
           held = excluded.held, held_due = excluded.held_due, lanes_waiting = excluded.lanes_waiting,
           oldest_due_at = excluded.oldest_due_at
), gone AS (
    DELETE FROM tenure.queue_stats WHERE queue NOT IN (SELECT queue FROM counted)
), scanned AS (
    UPDATE tenure.scanner_state
       SET measured_at = ended.at,
           -- One that lies ahead tells the next scan that the clock has stepped back.
           last_scan_at = CASE WHEN $6 THEN greatest(last_scan_at, ended.at) ELSE last_scan_at END,
           dead = (SELECT count(*) FROM tenure.dead_letter_jobs),
           relay_due_at = (SELECT min(relay_due_at) FROM counted),
           stream_until = CASE WHEN $1::text[] IS NOT NULL THEN ended.at + $5::float8 * interval '1 second' END,
           stream_measured_at = ended.at
      FROM (SELECT clock_timestamp() AS at OFFSET 0) AS ended
)
(SELECT queue, kind, due, submitted, messages, has_several, oldest_due_s, put_off, put_off_s, is_queue_served,
        is_served, NULL::bigint AS max_queued
   FROM waiting
  WHERE submitted > 0 OR NOT is_served OR put_off > 0
  ORDER BY is_served, put_off = 0, due + coalesce(submitted, 0) DESC, queue, kind
  LIMIT 200)
 UNION ALL
SELECT c.queue, NULL, c.due + c.scheduled + c.held, c.submitted, NULL, NULL, NULL, NULL, NULL, NULL, NULL, q.max_queued
  FROM counted c
  LEFT JOIN tenure.queues q ON q.queue = c.queue
 WHERE c.submitted > 0
