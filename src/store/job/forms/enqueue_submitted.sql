-- enqueue_submitted: enqueue.sql for submissions alone: the job was created when its message was published.
--
-- The parameters and the answer are those of enqueue.sql. A form of its own, because producers may not write created_at.
-- If the server's clock is ahead of the database's, the job was created now.
-- Made of parts: `scripts/statement enqueue_submitted` prints it whole.
-- include job/parts/enqueue_fresh.sql
INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, trace_context,
                         dispatch, publish_at, published_at, created_at, lane, priority, not_after, expires_as)
SELECT id, queue, kind, payload::jsonb, max_attempts, due_at, trace_context, 0,
       CASE WHEN NOT has_message THEN due_at END,
       CASE WHEN has_message THEN clock_timestamp() END,
       least(stream_published_at, clock_timestamp()), lane, priority, expires_at, expires_as
  FROM fresh
RETURNING id, published_at IS NOT NULL AS has_message
