-- Creates jobs whose arguments have been checked, with the keys, expiries and tags that their options name. Returns an
-- id a job: its own, or that of the job that holds its key. Only the call that takes a key creates the job.
--
--   options: of each job as `options_of` makes them, or NULL; NULL for all: no job has any
--
-- Called by `enqueue` and `enqueue_many`. It runs with the caller's rights: who may not insert a job
-- may not enqueue one. Two calls with the same keys: the second waits for the first one's transaction, and returns
-- its jobs.
CREATE OR REPLACE FUNCTION tenure.create_jobs(queues text[], kinds text[], payloads jsonb[], keys text[],
                                              due timestamptz[], attempts int[], traces text[],
                                              options jsonb[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    began       CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 4096000)::bigint;
    has_keys    CONSTANT boolean := num_nonnulls(VARIADIC keys) > 0;
    has_options CONSTANT boolean := num_nonnulls(VARIADIC options) > 0;
    ids         uuid[];
    holders     uuid[];
    of          record;
BEGIN
    FOR of IN
        SELECT q.queue, q.max_queued, (SELECT count(*) FROM unnest(queues) AS u(name) WHERE u.name = q.queue) AS jobs
          FROM tenure.queues q
         WHERE q.queue = ANY (queues) AND q.max_queued IS NOT NULL
         ORDER BY q.queue
    LOOP
        PERFORM tenure.take_room(of.queue, of.max_queued, of.jobs);
    END LOOP;

    -- UUIDs v7, whose times are 1/4096 ms apart: the ids of one call follow each other.
    ids := ARRAY(
        SELECT (lpad(to_hex((began + n) >> 12), 12, '0') || '7' || lpad(to_hex((began + n) & 4095), 3, '0')
                || right(replace(gen_random_uuid()::text, '-', ''), 16))::uuid
          FROM generate_series(1, cardinality(queues)) AS n
         ORDER BY n);
    holders := ids;
    IF has_keys THEN
        holders := tenure.take_unique_keys(ids, queues, keys);
    END IF;
    IF has_options THEN
        holders := tenure.take_lasting_keys(ids, holders, queues, payloads, due, options);
        -- None in the past: looks begin a minute ago.
        INSERT INTO tenure.job_expiries (at, job_id)
        SELECT greatest(to_timestamp((o.job ->> 'not_after')::float8), clock_timestamp()), o.id
          FROM unnest(ids, holders, options) AS o(id, holder, job)
         WHERE o.job ? 'not_after' AND o.id = o.holder;
        INSERT INTO tenure.job_tags (job_id, tag)
        SELECT o.id, t.tag
          FROM unnest(ids, holders, options) AS o(id, holder, job)
         CROSS JOIN LATERAL jsonb_array_elements_text(o.job -> 'tags') AS t(tag)
         WHERE o.id = o.holder
            ON CONFLICT DO NOTHING;
    END IF;
    IF has_keys OR has_options THEN
        -- For examples/import: the ids that this call returns and did not make.
        PERFORM set_config('tenure.held', array_to_string(
                    ARRAY(SELECT h FROM unnest(ids, holders) AS u(id, h) WHERE h <> id), ' '), true);
    END IF;
    INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, trace_context, dispatch,
                             publish_at, published_at, lane, priority, not_after, expires_as)
    SELECT u.id, u.queue, u.kind, u.payload, u.max_attempts, u.due_at, u.trace_context, 0, u.due_at, NULL,
           u.job ->> 'lane', (u.job ->> 'priority')::smallint, to_timestamp((u.job ->> 'not_after')::float8),
           u.job ->> 'expires_as'
      FROM unnest(ids, holders, queues, kinds, payloads, attempts, due, traces, options)
           AS u(id, holder, queue, kind, payload, max_attempts, due_at, trace_context, job)
     WHERE u.holder = u.id;
    RETURN holders;
END $$;

REVOKE ALL ON FUNCTION tenure.create_jobs(text[], text[], jsonb[], text[], timestamptz[], int[], text[], jsonb[])
    FROM PUBLIC;
