-- Tags: short words and key=value on a job, to find it by. They stay beside the job and move with none of its rows: what
-- claims, settles and recovers jobs does not know of them.

CREATE TABLE tenure.job_tags (
    job_id uuid NOT NULL,
    tag    text NOT NULL,
    PRIMARY KEY (job_id, tag)
);
-- The newest jobs with a tag: ids are time.
CREATE INDEX job_tags_by_tag ON tenure.job_tags (tag, job_id);

-- The roles that read jobs read their tags, those that enqueue write them, and those that purge dead letters delete them,
-- before postgres/roles.sql is run again, too.
CREATE FUNCTION tenure.pass_rights_to_tags() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of record;
BEGIN
    FOR of IN
        SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role, a.privilege_type
          FROM (SELECT c.oid, c.relowner, c.relacl AS acl, '{SELECT,INSERT}'::text[] AS passed
                  FROM pg_class c WHERE c.oid = 'tenure.jobs'::regclass
                 UNION ALL
                SELECT c.oid, c.relowner, t.attacl, '{INSERT}'
                  FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid WHERE c.oid = 'tenure.jobs'::regclass
                 UNION ALL
                SELECT c.oid, c.relowner, c.relacl, '{DELETE}'
                  FROM pg_class c WHERE c.oid = 'tenure.dead_letter_jobs'::regclass) has, aclexplode(has.acl) a
         WHERE a.privilege_type = ANY (has.passed) AND a.grantee <> has.relowner
    LOOP
        EXECUTE format('GRANT %s ON tenure.job_tags TO %s', of.privilege_type, of.role);
    END LOOP;
END $$;
SELECT tenure.pass_rights_to_tags();
DROP FUNCTION tenure.pass_rights_to_tags();

-- What is wrong with the tags of a job: a message, and a hint. NULL: nothing.
CREATE FUNCTION tenure.fault_in_tags(tags text[]) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tag text;
BEGIN
    IF cardinality(tags) > 16 THEN
        RETURN ARRAY[format('tags has %s tags, but a job has at most 16', cardinality(tags)),
                     'Leave some of them out, or put what you do not search for into the payload.'];
    END IF;
    FOREACH tag IN ARRAY coalesce(tags, '{}') LOOP
        IF (octet_length(tag) BETWEEN 1 AND 100 AND tenure.is_key(tag) AND tag !~ '[ ,]') IS NOT TRUE THEN
            RETURN ARRAY[format('a tag is %s (%s bytes), but must have 1 to 100 bytes without spaces, commas and control '
                                'characters', coalesce(to_json(left(tag, 80))::text, 'NULL'),
                                coalesce(octet_length(tag), 0)),
                         'Write a word, or key=value, such as customer=7.'];
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- As before, and with the tags of each new job: an option `tags`.
CREATE OR REPLACE FUNCTION tenure.create_jobs(queues text[], kinds text[], payloads jsonb[], keys text[], due timestamptz[],
                                   attempts int[], traces text[], options jsonb[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET tenure.by_sql = 'on' SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    began   CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 4096000)::bigint;
    ids     uuid[];
    holders uuid[];
    holder  uuid;
    rooms   jsonb;
    room    bigint;
    waiting bigint;
    place   int;
    of      record;
BEGIN
    -- Limits. A count lets a part of the room through for a second, so that a transaction that enqueues one job after
    -- the other does not count a long queue each time; `tenure.room` keeps it until the transaction ends.
    FOR of IN
        SELECT q.queue, q.max_queued, (SELECT count(*) FROM unnest(queues) AS u(name) WHERE u.name = q.queue) AS jobs
          FROM tenure.queues q
         WHERE q.queue = ANY (queues) AND q.max_queued IS NOT NULL
         ORDER BY q.queue
    LOOP
        rooms := coalesce(nullif(current_setting('tenure.room', true), '')::jsonb, '{}');
        room := (rooms -> of.queue ->> 0)::bigint;
        IF room >= of.jobs AND (rooms -> of.queue ->> 1)::float8 > extract(epoch FROM clock_timestamp()) THEN
            room := room - of.jobs;
        ELSE
            -- As count_queued.sql.
            SELECT (SELECT count(*) FROM (
                       SELECT FROM tenure.jobs
                        WHERE published_at IS NOT NULL AND status = 'queued'
                          AND (queue, published_at) >= (of.queue, '-infinity'::timestamptz)
                          AND (queue, published_at) <= (of.queue, 'infinity'::timestamptz)
                        ORDER BY queue, published_at LIMIT of.max_queued + 1) p)
                 + (SELECT count(*) FROM (
                       SELECT FROM tenure.jobs
                        WHERE publish_at IS NOT NULL AND status = 'queued'
                          AND (queue, publish_at) >= (of.queue, '-infinity'::timestamptz)
                          AND (queue, publish_at) <= (of.queue, 'infinity'::timestamptz)
                        ORDER BY queue, publish_at LIMIT of.max_queued + 1) u)
              INTO waiting;
            room := of.max_queued - waiting;
            IF room < of.jobs THEN
                RAISE EXCEPTION 'queue % is full: % jobs wait, and % more would exceed its limit of %',
                                to_json(of.queue), waiting, of.jobs, of.max_queued
                    USING ERRCODE = 'TN004', DETAIL = 'Nothing was enqueued.',
                          HINT = CASE WHEN of.jobs > of.max_queued
                                      THEN 'Enqueue fewer at once, or raise its limit with `tenure queues limit`.'
                                      ELSE 'Try again later, or raise its limit with `tenure queues limit`.' END;
            END IF;
            room := greatest(of.jobs, room / 10) - of.jobs;
        END IF;
        PERFORM set_config('tenure.room', (rooms || jsonb_build_object(of.queue,
                    jsonb_build_array(room, extract(epoch FROM clock_timestamp()) + 1)))::text, true);
    END LOOP;

    -- UUIDs v7, whose times are 1/4096 ms apart: the ids of one call follow each other.
    ids := ARRAY(
        SELECT (lpad(to_hex((began + n) >> 12), 12, '0') || '7' || lpad(to_hex((began + n) & 4095), 3, '0')
                || right(replace(gen_random_uuid()::text, '-', ''), 16))::uuid
          FROM generate_series(1, cardinality(queues)) AS n
         ORDER BY n);
    holders := ids;
    IF num_nonnulls(VARIADIC keys) > 0 THEN
        FOR try IN 1..3 LOOP
            -- In order: two producers with the same keys would deadlock otherwise.
            INSERT INTO tenure.job_keys (scope, key, job_id)
            SELECT u.queue, u.key, u.id
              FROM unnest(ids, queues, keys) AS u(id, queue, key)
             WHERE u.key IS NOT NULL
             ORDER BY u.queue, u.key
                ON CONFLICT (scope, key) DO NOTHING;
            holders := ARRAY(
                SELECT CASE WHEN u.key IS NULL THEN u.id
                            ELSE (SELECT k.job_id FROM tenure.job_keys k WHERE k.scope = u.queue AND k.key = u.key) END
                  FROM unnest(ids, queues, keys) WITH ORDINALITY AS u(id, queue, key, n)
                 ORDER BY u.n);
            -- A key whose holder is not there was purged in between.
            EXIT WHEN array_position(holders, NULL) IS NULL;
        END LOOP;
        IF array_position(holders, NULL) IS NOT NULL THEN
            RAISE EXCEPTION 'unique key % is held by a job that this transaction cannot see',
                            to_json(keys[array_position(holders, NULL)])
                USING ERRCODE = '40001', DETAIL = 'The transaction''s snapshot is older than that job.',
                      HINT = 'Roll back, and begin the transaction again.';
        END IF;
    END IF;
    IF num_nonnulls(VARIADIC options) > 0 THEN
        -- In order, too. Of several jobs with one key, the last one that replaces counts, or else the first.
        FOR of IN
            SELECT DISTINCT ON (k.scope, k.key) k.*, array_agg(k.n) OVER (PARTITION BY k.scope, k.key) AS places
              FROM (SELECT u.n, u.id, u.payload, u.due_at, u.job ->> 'lasting_key' AS key,
                           u.job ->> 'key_while' AS key_while,
                           (u.job ->> 'longest_s')::float8 * interval '1 second' AS longest,
                           u.queue || CASE u.job ->> 'key_while' WHEN 'live' THEN '/live' ELSE '/queued' END AS scope
                      FROM unnest(ids, queues, payloads, due, options)
                           WITH ORDINALITY AS u(id, queue, payload, due_at, job, n)
                     WHERE u.job ? 'lasting_key') k
             ORDER BY k.scope, k.key, k.key_while = 'replace' DESC,
                      CASE WHEN k.key_while = 'replace' THEN -k.n ELSE k.n END
        LOOP
            holder := tenure.take_key(of.key_while, of.scope, of.key, of.id, of.payload, of.due_at, of.longest);
            IF holder IS NULL THEN
                RAISE EXCEPTION 'key % is being taken by other transactions', to_json(of.key)
                    USING ERRCODE = '40001', DETAIL = 'Nothing was enqueued.',
                          HINT = 'Roll back, and begin the transaction again.';
            END IF;
            FOREACH place IN ARRAY of.places LOOP
                holders[place] := holder;
            END LOOP;
        END LOOP;
        IF EXISTS (SELECT FROM unnest(options) AS o(job) WHERE o.job ? 'not_after') THEN
            INSERT INTO tenure.job_expiries (at, job_id)
            SELECT to_timestamp((o.job ->> 'not_after')::float8), o.id
              FROM unnest(ids, holders, options) AS o(id, holder, job)
             WHERE o.job ? 'not_after' AND o.id = o.holder;
        END IF;
        IF EXISTS (SELECT FROM unnest(options) AS o(job) WHERE o.job ? 'tags') THEN
            INSERT INTO tenure.job_tags (job_id, tag)
            SELECT o.id, t.tag
              FROM unnest(ids, holders, options) AS o(id, holder, job)
             CROSS JOIN LATERAL jsonb_array_elements_text(o.job -> 'tags') AS t(tag)
             WHERE o.id = o.holder
                ON CONFLICT DO NOTHING;
        END IF;
    END IF;
    IF num_nonnulls(VARIADIC keys) > 0 OR num_nonnulls(VARIADIC options) > 0 THEN
        -- For examples/import: the ids that this call returns and did not make.
        PERFORM set_config('tenure.held', array_to_string(
                    ARRAY(SELECT h FROM unnest(ids, holders) AS u(id, h) WHERE h <> id), ' '), true);
    END IF;
    -- Only the statement that took the key creates the job. Until postgres/roles.sql was run again, a role may write
    -- the older columns alone.
    IF num_nonnulls(VARIADIC options) > 0 THEN
        INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, trace_context, dispatch,
                                 publish_at, published_at, lane, priority, not_after, expires_as)
        SELECT u.id, u.queue, u.kind, u.payload, u.max_attempts, u.due_at, u.trace_context, 0, u.due_at, NULL,
               u.job ->> 'lane', (u.job ->> 'priority')::smallint, to_timestamp((u.job ->> 'not_after')::float8),
               u.job ->> 'expires_as'
          FROM unnest(ids, holders, queues, kinds, payloads, attempts, due, traces, options)
               AS u(id, holder, queue, kind, payload, max_attempts, due_at, trace_context, job)
         WHERE u.holder = u.id;
    ELSE
        INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, trace_context, dispatch,
                                 publish_at, published_at)
        SELECT u.id, u.queue, u.kind, u.payload, u.max_attempts, u.due_at, u.trace_context, 0, u.due_at, NULL
          FROM unnest(ids, holders, queues, kinds, payloads, attempts, due, traces)
               AS u(id, holder, queue, kind, payload, max_attempts, due_at, trace_context)
         WHERE u.id = u.holder;
    END IF;
    RETURN holders;
END $$;

-- A view, a default or another function may depend on the older function: that one stays, under another name, with its
-- rights.
ALTER FUNCTION tenure.enqueue(text, text, jsonb, text, timestamptz, interval, int, text, text, int, timestamptz, text, text,
                              interval, text, text)
    RENAME TO enqueue_16;
COMMENT ON FUNCTION tenure.enqueue_16(text, text, jsonb, text, timestamptz, interval, int, text, text, int, timestamptz,
                                      text, text, interval, text, text) IS NULL;

CREATE FUNCTION tenure.enqueue(queue text, kind text, payload jsonb DEFAULT 'null', unique_key text DEFAULT NULL,
                               run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL,
                               max_attempts int DEFAULT NULL, trace_context text DEFAULT NULL,
                               lane text DEFAULT NULL, priority int DEFAULT NULL,
                               not_after timestamptz DEFAULT NULL, on_expiry text DEFAULT NULL,
                               replace text DEFAULT NULL, longest_wait interval DEFAULT NULL,
                               unique_while_queued text DEFAULT NULL, unique_while_live text DEFAULT NULL,
                               tags text[] DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fault   text[] := tenure.fault_in_job(queue, kind, payload, unique_key, run_at, delay, max_attempts);
    options jsonb;
BEGIN
    IF num_nonnulls(lane, priority, not_after, on_expiry, replace, longest_wait, unique_while_queued,
                    unique_while_live) > 0 THEN
        fault := coalesce(fault, tenure.fault_in_options(unique_key, delay, lane, priority, not_after, on_expiry,
                                                         replace, longest_wait, unique_while_queued,
                                                         unique_while_live));
        options := tenure.options_of(delay, lane, priority, not_after, on_expiry, replace, longest_wait,
                                     unique_while_queued, unique_while_live);
    END IF;
    IF cardinality(tags) > 0 THEN
        fault := coalesce(fault, tenure.fault_in_tags(tags));
        options := coalesce(options, '{}') || jsonb_build_object('tags', tags);
    END IF;
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'TN003', MESSAGE = fault[1], DETAIL = 'Nothing was enqueued.', HINT = fault[2];
    END IF;
    RETURN (tenure.create_jobs(ARRAY[queue], ARRAY[kind], ARRAY[coalesce(payload, 'null')], ARRAY[unique_key],
                               ARRAY[coalesce(run_at, clock_timestamp() + coalesce(delay, interval '0'))],
                               ARRAY[coalesce(max_attempts, 5)], ARRAY[tenure.valid_traceparent(trace_context)],
                               ARRAY[options]))[1];
END $$;
REVOKE ALL ON FUNCTION tenure.enqueue(text, text, jsonb, text, timestamptz, interval, int, text, text, int, timestamptz,
                                      text, text, interval, text, text, text[]) FROM PUBLIC;
COMMENT ON FUNCTION tenure.enqueue(text, text, jsonb, text, timestamptz, interval, int, text, text, int, timestamptz,
                                      text, text, interval, text, text, text[]) IS
'Enqueues a job in this transaction: it exists if and when that commits. Returns its id.
queue: 1 to 64 of A-Z a-z 0-9 _ -. kind: such names joined by dots. payload: at most tenure.payload_bytes_max bytes (256 KiB).
unique_key: of two jobs of a queue with one key only the first is created; the second call returns the first one''s id.
unique_while_queued, unique_while_live: so, too, but only until that job has started, or has ended.
replace: as unique_while_queued, and that job gets this payload, and this time; longest_wait: since its first enqueue.
run_at, or delay: when it is due, at most ten years ahead. max_attempts: 1 to 1000 (5). trace_context: a W3C traceparent.
lane: 1 to 256 bytes. priority: -100 to 100 within the lane, the lower, the sooner (0).
tags: at most 16 of 1 to 100 bytes without spaces and commas, such as customer=7.
not_after: it does not start later; on_expiry: dead_letter (or without it), or cancel.
Errors: TN003 invalid, TN004 queue full, TN005 queue moved, TN006 queue about to arrive, 40001 begin again.';

-- Who may call a function may call the one that takes its place.
CREATE FUNCTION tenure.pass_rights(older regprocedure, newer regprocedure) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of record;
BEGIN
    FOR of IN
        SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role, a.is_grantable
          FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
         WHERE p.oid = older AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s%s', newer, of.role,
                       CASE WHEN of.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
END $$;
SELECT tenure.pass_rights(
    'tenure.enqueue_16(text, text, jsonb, text, timestamptz, interval, int, text, text, int, timestamptz, text, text,
                       interval, text, text)',
    'tenure.enqueue(text, text, jsonb, text, timestamptz, interval, int, text, text, int, timestamptz, text, text,
                    interval, text, text, text[])');
DROP FUNCTION tenure.pass_rights(regprocedure, regprocedure);

CREATE OR REPLACE FUNCTION tenure.enqueue_many(jobs jsonb) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    jobs_max CONSTANT int  := 10000;
    of_names CONSTANT text := 'A job has queue, kind, payload, unique_key, run_at, delay, max_attempts, trace_context, '
                              'lane, priority, not_after, on_expiry, replace, longest_wait, unique_while_queued, '
                              'unique_while_live and tags, as the arguments of tenure.enqueue; only queue and kind are '
                              'required.';
    of_texts CONSTANT text := 'Write a delay as in "90 seconds", and a time as in "2030-01-31T12:00:00Z".';
    rarer    CONSTANT text[] := '{lane,priority,not_after,on_expiry,replace,longest_wait,unique_while_queued,'
                                'unique_while_live,tags}';
    bad      record;
    worse    record;
    moment   timestamptz := clock_timestamp();
    queues   text[];
    kinds    text[];
    payloads jsonb[];
    keys     text[];
    run_ats  timestamptz[];
    delays   interval[];
    attempts numeric[];
    traces   text[];
    options  jsonb[];
BEGIN
    IF jsonb_typeof(jobs) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'jobs is %, but must be an array of objects',
                        coalesce('of type ' || jsonb_typeof(jobs), 'NULL')
            USING ERRCODE = 'TN003', DETAIL = 'Nothing was enqueued.', HINT = of_names;
    ELSIF jsonb_array_length(jobs) > jobs_max THEN
        RAISE EXCEPTION 'jobs has % jobs, but at most % may be enqueued in one call', jsonb_array_length(jobs), jobs_max
            USING ERRCODE = 'TN003', DETAIL = 'Nothing was enqueued.',
                  HINT = 'Call it several times in one transaction: all of the jobs, or none.';
    ELSIF jsonb_array_length(jobs) = 0 THEN
        RETURN;
    END IF;

    SELECT e.n - 1 AS n, format('is of type %s, but must be an object', jsonb_typeof(e.job)) AS what, of_names AS hint
      INTO bad
      FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, n)
     WHERE jsonb_typeof(e.job) <> 'object'
     ORDER BY e.n LIMIT 1;
    IF bad IS NULL THEN
        SELECT e.n - 1 AS n, f.what, f.hint
          INTO bad
          FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, n)
         CROSS JOIN LATERAL (
             SELECT CASE WHEN name <> ALL ('{queue,kind,payload,unique_key,run_at,delay,max_attempts,trace_context}'
                                           || rarer)
                         THEN format('has an unknown field, %s', to_json(left(name, 80)))
                         WHEN jsonb_typeof(value) = 'null' OR name = 'payload' THEN NULL
                         WHEN name = 'tags'
                         THEN CASE WHEN jsonb_typeof(value) <> 'array'
                                        OR jsonb_path_exists(value, '$[*] ? (@.type() != "string")')
                                   THEN 'has tags that are not an array of strings' END
                         WHEN (name IN ('max_attempts', 'priority')) <> (jsonb_typeof(value) = 'number')
                           OR name NOT IN ('max_attempts', 'priority') AND jsonb_typeof(value) <> 'string'
                         THEN format('has a %s of type %s, but it must be a %s', name, jsonb_typeof(value),
                                     CASE WHEN name IN ('max_attempts', 'priority') THEN 'number' ELSE 'string' END)
                    END AS what,
                    CASE WHEN name IN ('run_at', 'delay', 'not_after', 'longest_wait') THEN of_texts
                         ELSE of_names END AS hint
               FROM jsonb_each(e.job) AS field(name, value)) f
         WHERE f.what IS NOT NULL
         ORDER BY e.n LIMIT 1;
    END IF;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'jobs[%] %', bad.n, bad.what
            USING ERRCODE = 'TN003', DETAIL = 'Nothing was enqueued.', HINT = bad.hint;
    END IF;

    BEGIN
        SELECT array_agg(e.job ->> 'queue' ORDER BY e.n), array_agg(e.job ->> 'kind' ORDER BY e.n),
               array_agg(coalesce(e.job -> 'payload', 'null') ORDER BY e.n),
               array_agg(e.job ->> 'unique_key' ORDER BY e.n),
               array_agg((e.job ->> 'run_at')::timestamptz ORDER BY e.n),
               array_agg((e.job ->> 'delay')::interval ORDER BY e.n),
               array_agg((e.job ->> 'max_attempts')::numeric ORDER BY e.n),
               array_agg(tenure.valid_traceparent(e.job ->> 'trace_context') ORDER BY e.n)
          INTO queues, kinds, payloads, keys, run_ats, delays, attempts, traces
          FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, n);
        IF EXISTS (SELECT FROM jsonb_array_elements(jobs) AS e(job) WHERE e.job ?| rarer) THEN
            SELECT array_agg(CASE WHEN jsonb_array_length(nullif(e.job -> 'tags', 'null')) > 0
                                  THEN coalesce(r.options, '{}') || jsonb_build_object('tags', e.job -> 'tags')
                                  ELSE r.options END ORDER BY e.n)
              INTO options
              FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, n)
             CROSS JOIN LATERAL jsonb_to_record(e.job)
                   AS o(delay interval, lane text, priority numeric, not_after timestamptz, on_expiry text,
                        replace text, longest_wait interval, unique_while_queued text, unique_while_live text)
             CROSS JOIN LATERAL (
                 SELECT tenure.options_of(o.delay, o.lane, o.priority, o.not_after, o.on_expiry, o.replace,
                                          o.longest_wait, o.unique_while_queued, o.unique_while_live) AS options) r;
        END IF;
    EXCEPTION WHEN data_exception OR invalid_text_representation THEN
        -- A text is no time or no interval: look for the first.
        FOR bad IN
            SELECT e.n - 1 AS n, f.name, f.value
              FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, n)
             CROSS JOIN LATERAL jsonb_each_text(e.job) AS f(name, value)
             WHERE f.name IN ('run_at', 'delay', 'not_after', 'longest_wait') AND f.value IS NOT NULL
             ORDER BY e.n, f.name
        LOOP
            BEGIN
                IF bad.name IN ('run_at', 'not_after') THEN
                    PERFORM bad.value::timestamptz;
                ELSE
                    PERFORM bad.value::interval;
                END IF;
            EXCEPTION WHEN data_exception OR invalid_text_representation THEN
                RAISE EXCEPTION 'jobs[%] %: %', bad.n, bad.name, SQLERRM
                    USING ERRCODE = 'TN003', DETAIL = 'Nothing was enqueued.', HINT = of_texts;
            END;
        END LOOP;
        RAISE;
    END;

    SELECT u.n - 1 AS n, f.fault
      INTO bad
      FROM unnest(queues, kinds, payloads, keys, run_ats, delays, attempts)
           WITH ORDINALITY AS u(queue, kind, payload, key, run_at, delay, max_attempts, n)
     CROSS JOIN LATERAL (
         SELECT tenure.fault_in_job(u.queue, u.kind, u.payload, u.key, u.run_at, u.delay, u.max_attempts) AS fault) f
     WHERE f.fault IS NOT NULL
     ORDER BY u.n LIMIT 1;
    IF options IS NOT NULL THEN
        SELECT e.n - 1 AS n, f.fault
          INTO worse
          FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, n)
         CROSS JOIN LATERAL jsonb_to_record(e.job)
               AS o(unique_key text, delay interval, lane text, priority numeric, not_after timestamptz,
                    on_expiry text, replace text, longest_wait interval, unique_while_queued text,
                    unique_while_live text, tags text[])
         CROSS JOIN LATERAL (
             SELECT coalesce(tenure.fault_in_options(o.unique_key, o.delay, o.lane, o.priority, o.not_after, o.on_expiry,
                                                     o.replace, o.longest_wait, o.unique_while_queued,
                                                     o.unique_while_live),
                             tenure.fault_in_tags(o.tags)) AS fault) f
         WHERE f.fault IS NOT NULL AND (bad IS NULL OR e.n - 1 < bad.n)
         ORDER BY e.n LIMIT 1;
        IF worse IS NOT NULL THEN
            bad := worse;
        END IF;
    END IF;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'TN003', MESSAGE = format('jobs[%s]: %s', bad.n, bad.fault[1]),
                              DETAIL = 'Nothing was enqueued.', HINT = bad.fault[2];
    END IF;

    RETURN QUERY SELECT unnest(tenure.create_jobs(queues, kinds, payloads, keys,
        ARRAY(SELECT coalesce(u.run_at, moment + coalesce(u.delay, interval '0'))
                FROM unnest(run_ats, delays) WITH ORDINALITY AS u(run_at, delay, n) ORDER BY u.n),
        ARRAY(SELECT coalesce(u.max_attempts, 5)::int
                FROM unnest(attempts) WITH ORDINALITY AS u(max_attempts, n) ORDER BY u.n),
        traces, options));
END $$;
COMMENT ON FUNCTION tenure.enqueue_many(jsonb) IS
'Enqueues many jobs in this transaction, all or none. Returns their ids in order, as tenure.enqueue does of each.
jobs: an array of at most 10,000 objects with the names of the arguments of tenure.enqueue; only queue and kind are required.
run_at, not_after, delay and longest_wait are texts, as Postgres reads a timestamptz and an interval.
Of several jobs with one key of replace, the last one counts.
Errors: those of tenure.enqueue; TN003 names the place of the job in the array, from 0.';

-- As before, and the tags.
CREATE OR REPLACE FUNCTION tenure.purge_traces(after uuid, step int) RETURNS TABLE (gone bigint, last uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    WITH horizon AS (
        SELECT tenure.id_of_time(purged_until) AS id FROM tenure.scanner_state
    ), traced AS MATERIALIZED (
        SELECT t.job_id
          FROM (SELECT DISTINCT e.job_id FROM (
                    SELECT x.job_id FROM tenure.job_executions x
                     WHERE x.job_id > after AND x.job_id < (SELECT id FROM horizon) ORDER BY x.job_id LIMIT step) e
                UNION
                SELECT DISTINCT f.job_id FROM (
                    SELECT x.job_id FROM tenure.effects x
                     WHERE x.job_id > after AND x.job_id < (SELECT id FROM horizon) ORDER BY x.job_id LIMIT step) f
                UNION
                SELECT DISTINCT g.job_id FROM (
                    SELECT x.job_id FROM tenure.job_tags x
                     WHERE x.job_id > after AND x.job_id < (SELECT id FROM horizon) ORDER BY x.job_id LIMIT step) g) t
         ORDER BY t.job_id LIMIT step
    ), orphans AS MATERIALIZED (
        SELECT t.job_id FROM traced t
         WHERE NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = t.job_id)
           AND NOT EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = t.job_id)
           AND NOT EXISTS (SELECT FROM tenure.job_history h WHERE h.id = t.job_id)
    ), attempts AS (
        DELETE FROM tenure.job_executions x USING orphans o WHERE x.job_id = o.job_id
    ), effects AS (
        DELETE FROM tenure.effects x USING orphans o WHERE x.job_id = o.job_id
    ), tags AS (
        DELETE FROM tenure.job_tags x USING orphans o WHERE x.job_id = o.job_id
    )
    SELECT (SELECT count(*) FROM orphans), (SELECT t.job_id FROM traced t ORDER BY t.job_id DESC LIMIT 1);
END $$;

CREATE OR REPLACE FUNCTION tenure.forget_traces(job uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM tenure.jobs j WHERE j.id = job)
       OR EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = job)
       OR EXISTS (SELECT FROM tenure.job_history h WHERE h.id = job)
    THEN
        RETURN;
    END IF;
    DELETE FROM tenure.job_executions e WHERE e.job_id = job;
    DELETE FROM tenure.effects e WHERE e.job_id = job;
    DELETE FROM tenure.job_tags t WHERE t.job_id = job;
END $$;
