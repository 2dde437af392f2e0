-- enqueue_fresh: takes the keys of new jobs. `fresh` has the jobs to create; the parameters are those of enqueue.sql.
WITH input AS MATERIALIZED (
    SELECT u.*,
           -- A submission is due since its message is there; a server's clock that is ahead does not delay it.
           coalesce(u.run_at, least(u.stream_published_at,
                                    statement_timestamp() + coalesce(u.delay_s, 0) * interval '1 second')) AS due_at
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
