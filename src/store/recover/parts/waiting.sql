-- waiting: live jobs and messages by queue and kind, and the live workers that do not drain.
--
--   $1 queues  $2 kinds  $3 messages: how many the stream holds of each that name one job or are submissions  $4 how
--      many jobs its other messages name; all NULL: NATS was not asked. An empty kind stands for all kinds of its queue
--      that the list leaves out
--
-- Submitted: messages beyond those that the live rows account for. A row has a message there while it is published or
-- runs. A message that names several jobs names those that have ended, too: so no more than $3 are submissions. Some of
-- these messages may be tickets that no row accounts for (of a job that was cancelled, or reset); reading some of them
-- tells how many (nats/survey.rs).
-- Put off: workers that got the job did not know its kind, and have not for more than a minute.
-- Held: the time of such a job never comes; its lane releases it.
-- Each join is one of equal columns: with 10,000 kinds beside 10,000 of workers, a loop over both would take minutes.
WITH live AS MATERIALIZED (
    SELECT queue, kind,
           count(*) FILTER (WHERE status = 'queued' AND scheduled_at <= statement_timestamp()) AS due,
           count(*) FILTER (WHERE status = 'queued' AND scheduled_at > statement_timestamp()
                                                    AND scheduled_at < '9998-01-01 00:00:00+00') AS scheduled,
           count(*) FILTER (WHERE status = 'queued' AND scheduled_at >= '9998-01-01 00:00:00+00') AS held,
           count(*) FILTER (WHERE status = 'processing') AS processing,
           count(*) FILTER (WHERE status = 'processing' OR published_at IS NOT NULL) AS messages,
           min(scheduled_at) FILTER (WHERE status = 'queued' AND scheduled_at <= statement_timestamp()) AS oldest_due_at,
           count(*) FILTER (WHERE status = 'queued' AND put_off_since < statement_timestamp() - interval '1 minute')
               AS put_off,
           min(put_off_since) FILTER (WHERE status = 'queued') AS put_off_since,
           min(scheduled_at) FILTER (WHERE status = 'queued' AND publish_at IS NOT NULL AND scheduled_at <= statement_timestamp())
               AS relay_due_at
      FROM tenure.jobs
     GROUP BY queue, kind
), stream (queue, kind, messages, named) AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
), unlisted AS MATERIALIZED (
    SELECT l.queue, sum(l.messages) AS messages
      FROM live l
      LEFT JOIN stream s USING (queue, kind)
     WHERE s.messages IS NULL
     GROUP BY l.queue
), of_kind AS MATERIALIZED (
    SELECT queue, kind, coalesce(l.due, 0) AS due, coalesce(l.scheduled, 0) AS scheduled,
           coalesce(l.held, 0) AS held, coalesce(l.processing, 0) AS processing, l.oldest_due_at, l.relay_due_at, coalesce(s.messages, 0) AS messages,
           coalesce(s.named, 0) > 0 AS has_several, coalesce(l.put_off, 0) AS put_off, l.put_off_since,
           CASE WHEN $1::text[] IS NOT NULL
                THEN greatest(least(s.messages, s.messages + s.named - coalesce(l.messages, u.messages, 0)), 0)::bigint
                END AS submitted
      FROM live l
      FULL JOIN stream s USING (queue, kind)
      LEFT JOIN (SELECT queue, '' AS kind, messages FROM unlisted) u USING (queue, kind)
), alive AS MATERIALIZED (
    SELECT row_number() OVER () AS alike, w.queues, w.kinds
      FROM (SELECT DISTINCT queues, kinds FROM tenure.workers
             WHERE last_seen_at > statement_timestamp() - 3 * renew_every AND draining_at IS NULL) w
), queue_alive AS MATERIALIZED (
    SELECT alike, unnest(queues) AS queue, kinds IS NULL AS runs_any FROM alive
), kind_alive AS MATERIALIZED (
    SELECT DISTINCT alike, unnest(kinds) AS kind FROM alive
), served AS MATERIALIZED (
    SELECT k.queue, k.kind, bool_or(q.runs_any OR r.kind IS NOT NULL OR k.kind = '') AS is_served
      FROM of_kind k
      JOIN queue_alive q USING (queue)
      LEFT JOIN kind_alive r ON r.alike = q.alike AND r.kind = k.kind
     WHERE k.due > 0 OR k.submitted > 0
     GROUP BY k.queue, k.kind
), waiting AS MATERIALIZED (
    SELECT queue, kind, k.due, k.submitted, k.messages, k.has_several,
           extract(epoch FROM statement_timestamp() - k.oldest_due_at)::float8 AS oldest_due_s,
           -- Once each worker of the queue knows the kind, a deploy has ended.
           CASE WHEN k.put_off > 0
                 AND EXISTS (SELECT FROM alive a WHERE k.queue = ANY (a.queues) AND NOT k.kind = ANY (a.kinds))
                THEN k.put_off ELSE 0
           END AS put_off,
           extract(epoch FROM statement_timestamp() - k.put_off_since)::float8 AS put_off_s,
           s.is_served IS NOT NULL AS is_queue_served, coalesce(s.is_served, false) AS is_served
      FROM of_kind k
      LEFT JOIN served s USING (queue, kind)
     WHERE k.due > 0 OR k.submitted > 0
)
