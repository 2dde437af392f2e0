-- waiting: live jobs and messages by queue and kind, and the live workers.
--
--   $1 queues  $2 kinds  $3 messages: how many the stream holds of each; all three NULL: NATS was not asked
--
-- Submitted: messages without a row, which are no job yet. A row has a message there while it is published or runs. A
-- message whose job has ended, and that no worker has received yet, counts as submitted, too.
WITH live AS MATERIALIZED (
    SELECT queue, kind,
           count(*) FILTER (WHERE status = 'queued' AND scheduled_at <= statement_timestamp()) AS due,
           count(*) FILTER (WHERE status = 'queued' AND scheduled_at > statement_timestamp()) AS scheduled,
           count(*) FILTER (WHERE status = 'processing') AS processing,
           count(*) FILTER (WHERE status = 'processing' OR published_at IS NOT NULL) AS messages,
           min(scheduled_at) FILTER (WHERE status = 'queued' AND scheduled_at <= statement_timestamp()) AS oldest_due_at,
           min(scheduled_at) FILTER (WHERE status = 'queued' AND publish_at IS NOT NULL AND scheduled_at <= statement_timestamp())
               AS relay_due_at
      FROM tenure.jobs
     GROUP BY queue, kind
), stream (queue, kind, messages) AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])
), of_kind AS MATERIALIZED (
    SELECT queue, kind, coalesce(l.due, 0) AS due, coalesce(l.scheduled, 0) AS scheduled,
           coalesce(l.processing, 0) AS processing, l.oldest_due_at, l.relay_due_at,
           CASE WHEN $1::text[] IS NOT NULL
                THEN greatest(coalesce(s.messages, 0) - coalesce(l.messages, 0), 0) END AS submitted
      FROM live l
      FULL JOIN stream s USING (queue, kind)
), alive AS MATERIALIZED (
    SELECT DISTINCT w.queues, w.kinds FROM tenure.workers w
     WHERE w.last_seen_at > statement_timestamp() - 3 * w.renew_every
), waiting AS MATERIALIZED (
    SELECT k.queue, k.kind, k.due, k.submitted,
           extract(epoch FROM statement_timestamp() - k.oldest_due_at)::float8 AS oldest_due_s,
           EXISTS (SELECT FROM alive a WHERE k.queue = ANY (a.queues)) AS is_queue_served,
           EXISTS (SELECT FROM alive a
                    WHERE k.queue = ANY (a.queues) AND (a.kinds IS NULL OR k.kind = ANY (a.kinds))) AS is_served
      FROM of_kind k
     WHERE k.due > 0 OR k.submitted > 0
)
