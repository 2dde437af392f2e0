-- enqueue_plain: create jobs that are due, have no key, and whose caller publishes dispatch 1.
--
--   $1 ids  $2 places in $5 to $7, which hold once what jobs of one kind share
--   $3 payloads (JSON text)  $4 trace contexts  $5 queues  $6 kinds  $7 max_attempts
--
-- Does the same as enqueue.sql for such jobs, with a third of its arrays, each of which costs another pass.
INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, trace_context, dispatch,
                         published_at)
SELECT u.id, ($5::text[])[u.shape], ($6::text[])[u.shape], u.payload::jsonb, ($7::int[])[u.shape],
       statement_timestamp(), u.trace_context, 1, clock_timestamp()
  FROM unnest((SELECT $1::uuid[]), $2::int[], $3::text[], $4::text[]) AS u(id, shape, payload, trace_context)
RETURNING id, published_at IS NOT NULL AS has_message
