-- enqueue_fresh: takes the keys of new jobs. `fresh` has the jobs to create; the parameters are those of enqueue.sql.
WITH input AS MATERIALIZED (
    SELECT u.*, o.*,
           -- A submission is due since its message is there; a server's clock that is ahead does not delay it.
           coalesce(u.run_at, least(u.stream_published_at,
                                    statement_timestamp() + coalesce(u.delay_s, 0) * interval '1 second')) AS due_at
      FROM unnest((SELECT $1::uuid[]), $2::text[], $3::text[], $4::text[], $5::int[], $6::timestamptz[], $7::float8[],
                  $8::text[], $9::text[], $10::text[], $11::bigint[], $12::timestamptz[], $13::text[], $15::text[])
           WITH ORDINALITY AS u(id, queue, kind, payload, max_attempts, run_at, delay_s, trace_context, key_scope, key,
                stream_seq, stream_published_at, told, options, n)
     CROSS JOIN LATERAL jsonb_to_record(coalesce(u.options::jsonb, '{}'))
           AS o(lane text, priority smallint, not_after timestamptz, expires_in_s float8, expires_as text,
                key_while text, lasting_key text, longest_s float8, tags jsonb, group_id uuid)
     WHERE (SELECT set_config('lock_timeout', coalesce($14, current_setting('lock_timeout')), true)) IS NOT NULL
), keyed AS (
    INSERT INTO tenure.job_keys (scope, key, job_id, stream_seq, stream_published_at)
    SELECT key_scope, key, id, stream_seq, stream_published_at
      FROM input
     WHERE key IS NOT NULL
     ORDER BY key_scope, key
        ON CONFLICT (scope, key) DO NOTHING
    RETURNING job_id
), unheld AS (
    SELECT * FROM input WHERE key IS NULL OR EXISTS (SELECT FROM keyed WHERE keyed.job_id = input.id)
), lasting AS MATERIALIZED (
    -- Of several jobs with one key the first is created; where they replace each other, the last.
    SELECT k.id, tenure.take_key(k.key_while, k.scope, k.lasting_key, k.id, k.payload::jsonb, k.due_at,
                                 k.longest_s * interval '1 second') AS holder
      FROM (SELECT DISTINCT ON (scope, lasting_key) *
              FROM (SELECT *, queue || CASE WHEN key_while = 'live' THEN '/live' ELSE '/queued' END AS scope
                      FROM unheld WHERE lasting_key IS NOT NULL) named
             ORDER BY scope, lasting_key, CASE WHEN key_while = 'replace' THEN -n ELSE n END) k
), fresh AS (
    SELECT unheld.*, told <> 'relay' AND due_at <= statement_timestamp() AS has_message,
           coalesce(not_after, due_at + expires_in_s * interval '1 second') AS expires_at
      FROM unheld
     WHERE lasting_key IS NULL OR EXISTS (SELECT FROM lasting WHERE lasting.id = unheld.id AND lasting.holder = unheld.id)
), expiring AS (
    INSERT INTO tenure.job_expiries (at, job_id) SELECT greatest(expires_at, clock_timestamp()), id FROM fresh WHERE expires_at IS NOT NULL
), tagged AS (
    INSERT INTO tenure.job_tags (job_id, tag)
    SELECT fresh.id, t.tag FROM fresh CROSS JOIN LATERAL jsonb_array_elements_text(fresh.tags) AS t(tag)
)
