-- enqueue: create jobs, each at most once per key.
--
--   $1 ids  $2 queues  $3 kinds  $4 payloads (JSON text)  $5 max_attempts
--   $6 run_at or NULL  $7 delay in seconds or NULL  $8 trace contexts
--   $9 key scopes  $10 keys (NULL: no key)  $11, $12 of a submission: its message's sequence and time
--   $13 told: 'relay' (the relay shall publish), 'ticket' (the caller publishes dispatch 1 once this is
--       committed), 'message' (the message exists already: a submission)
--   $14 how long to wait for another transaction that is about to insert one of the keys, for example
--       '100ms'; NULL: the session's limit, as in a user's transaction
--
-- One row a created job. The key of an id without a row is taken; held_keys.sql names its holder. That is a
-- second statement because this one's snapshot may be older than the insert that won.
-- Only the statement that inserted the key creates the job: the job's row may be gone long before its
-- last message is. Keys are inserted in order, or two producers with the same keys would deadlock.
WITH input AS MATERIALIZED (
    SELECT u.*,
           coalesce(u.run_at, statement_timestamp() + coalesce(u.delay_s, 0) * interval '1 second') AS due_at
      FROM unnest((SELECT $1::uuid[]), $2::text[], $3::text[], $4::text[], $5::int[], $6::timestamptz[], $7::float8[],
                  $8::text[], $9::text[], $10::text[], $11::bigint[], $12::timestamptz[], $13::text[])
           AS u(id, queue, kind, payload, max_attempts, run_at, delay_s, trace_context, key_scope, key,
                stream_seq, stream_published_at, told)
     WHERE (SELECT set_config('lock_timeout', coalesce($14, current_setting('lock_timeout')), true)) IS NOT NULL
), keyed AS (
    INSERT INTO tenure.job_keys (scope, key, job_id, stream_seq, stream_published_at)
    SELECT key_scope, key, id, stream_seq, stream_published_at
      FROM input
     WHERE key IS NOT NULL
     ORDER BY key_scope, key
        ON CONFLICT (scope, key) DO NOTHING
    RETURNING job_id
), fresh AS (
    SELECT input.*, told <> 'relay' AND due_at <= statement_timestamp() AS has_message
      FROM input
     WHERE key IS NULL OR EXISTS (SELECT FROM keyed WHERE keyed.job_id = input.id)
)
INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, trace_context,
                         dispatch, publish_at, published_at)
SELECT id, queue, kind, payload::jsonb, max_attempts, due_at, trace_context,
       CASE WHEN has_message AND told = 'ticket' THEN 1 ELSE 0 END,
       CASE WHEN NOT has_message THEN due_at END,
       CASE WHEN has_message THEN clock_timestamp() END
  FROM fresh
RETURNING id, published_at IS NOT NULL AS has_message
