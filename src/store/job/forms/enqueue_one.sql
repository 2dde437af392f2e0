-- enqueue_one: enqueue_plain.sql for one job, in half the time, for a producer that enqueues one job at a time.
--
--   $1 id  $2 queue  $3 kind  $4 payload (JSON text)  $5 max_attempts  $6 trace context
INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, trace_context, dispatch,
                         published_at)
VALUES ($1, $2, $3, $4::text::jsonb, $5, statement_timestamp(), $6, 1, clock_timestamp())
RETURNING id, published_at IS NOT NULL AS has_message
