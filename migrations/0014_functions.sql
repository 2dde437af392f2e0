-- The SQL surface: functions by which any program that can write to this database enqueues jobs, and by which a
-- program that runs a job commits its own rows and the job's end together.
--
-- docs/sql.md says what is stable: the functions that `\df+` describes, with their arguments' names, order and types, and
-- their SQLSTATEs. The others here are their parts. All run with the caller's rights: postgres/roles.sql is the law.
-- Names in a body mean columns; an argument is named with its function, as in once.key. enable_seqscan: a session that
-- planned a function's statements while a table looked empty would scan that table for ever.

-- Refuses new jobs of a queue that has moved, or has not arrived yet, as before. The functions below have SQLSTATEs of
-- their own: programs know TN001 and TN002 of a job that they insert as the signs of such a queue.
CREATE OR REPLACE FUNCTION tenure.refuse_moved() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_submission bool := coalesce(current_setting('tenure.submitted', true) = 'on', false);
    by_sql        bool := coalesce(current_setting('tenure.by_sql', true) = 'on', false);
    went_to       text := CASE WHEN TG_ARGV[0] = 'moved' THEN TG_ARGV[1] END;
    comes_from    text;
BEGIN
    IF went_to IS NULL THEN
        SELECT q.moved_to, coalesce(q.arrives_from, CASE WHEN current_setting('transaction_isolation') <> 'read committed'
                                                         THEN TG_ARGV[1] END)
          INTO went_to, comes_from
          FROM tenure.queues q
         WHERE q.queue = NEW.queue;
        IF NOT FOUND THEN
            comes_from := TG_ARGV[1];
        END IF;
    END IF;
    IF went_to IS NOT NULL AND NOT is_submission THEN
        RAISE EXCEPTION 'queue % has moved to cell %', NEW.queue, went_to
            USING ERRCODE = CASE WHEN by_sql THEN 'TN005' ELSE 'TN001' END, DETAIL = NEW.queue || ' ' || went_to,
                  HINT = 'Enqueue there: that cell accepts its new jobs.';
    ELSIF went_to IS NULL AND comes_from IS NOT NULL THEN
        RAISE EXCEPTION 'queue % is about to arrive from cell %', NEW.queue, comes_from
            USING ERRCODE = CASE WHEN by_sql THEN 'TN006' ELSE 'TN002' END, DETAIL = NEW.queue || ' ' || comes_from,
                  HINT = 'Try again in a moment; if that lasts, run `tenure queues move` again.';
    END IF;
    RETURN NEW;
END $$;

-- Whether a text may be a unique key, or the key of an effect. NULL for NULL.
CREATE FUNCTION tenure.is_key(key text) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT octet_length(key) BETWEEN 1 AND 512
           AND key !~ ('[' || chr(1) || '-' || chr(31) || chr(127) || '-' || chr(159) || ']')
$$;

-- What is wrong with a job: a message, and a hint. NULL: nothing.
CREATE FUNCTION tenure.fault_in_job(queue text, kind text, payload jsonb, unique_key text, run_at timestamptz,
                                    delay interval, max_attempts numeric) RETURNS text[]
LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ahead    CONSTANT interval := interval '3650 days';
    most     text := coalesce(nullif(current_setting('tenure.payload_bytes_max', true), ''), '262144');
    of_limit CONSTANT text := 'Store the payload elsewhere and enqueue a reference, or raise the limit: '
                              'ALTER DATABASE … SET tenure.payload_bytes_max = … (a number of bytes).';
BEGIN
    IF queue IS NULL OR queue COLLATE "C" !~ '^[A-Za-z0-9_-]{1,64}$' THEN
        RETURN ARRAY[format('queue %s is not a valid name: it must be 1 to 64 of A-Z a-z 0-9 _ -',
                            coalesce(to_json(left(queue, 80))::text, 'NULL')),
                     'Pass the name of a queue, as a worker is told it.'];
    ELSIF kind IS NULL OR length(kind) > 200
          OR kind COLLATE "C" !~ '^[A-Za-z0-9_-]{1,64}([.][A-Za-z0-9_-]{1,64})*$' THEN
        RETURN ARRAY[format('kind %s is not a valid name: it must be 1 to 64 of A-Z a-z 0-9 _ -, or several such parts '
                            'joined by dots, 200 characters in all', coalesce(to_json(left(kind, 80))::text, 'NULL')),
                     'Pass the name by which a worker knows its handler.'];
    ELSIF most !~ '^[0-9]{1,10}$' THEN
        RETURN ARRAY[format('the setting tenure.payload_bytes_max is %s, but must be a number of bytes', to_json(most)),
                     'Write it without a unit, as in 1048576.'];
    ELSIF octet_length(payload::text) > most::bigint THEN
        RETURN ARRAY[format('the payload has %s bytes, but at most %s are allowed', octet_length(payload::text), most),
                     of_limit];
    ELSIF max_attempts NOT BETWEEN 1 AND 1000 OR max_attempts <> trunc(max_attempts) THEN
        RETURN ARRAY[format('max_attempts is %s, but must be a whole number from 1 to 1000', max_attempts),
                     'Leave it out for the default, 5.'];
    ELSIF run_at IS NOT NULL AND delay IS NOT NULL THEN
        RETURN ARRAY['run_at and delay are both given, but a job has at most one of them', 'Leave one of them out.'];
    ELSIF delay < interval '0' OR delay > ahead THEN
        RETURN ARRAY[format('delay is %s, but must be from 0 to ten years', delay), 'For a fixed time, pass run_at.'];
    ELSIF NOT isfinite(run_at) OR run_at > statement_timestamp() + ahead THEN
        RETURN ARRAY[format('run_at is %s, but must be at most ten years ahead', run_at),
                     'A time that has passed is allowed, and means at once.'];
    ELSIF NOT tenure.is_key(unique_key) THEN
        RETURN ARRAY[format('unique_key is %s (%s bytes), but must have 1 to 512 bytes and no control characters',
                            to_json(left(unique_key, 80)), octet_length(unique_key)),
                     'Hash a longer key, and escape other characters; leave it out for a job without one.'];
    END IF;
    RETURN NULL;
END $$;

-- Inserts jobs that are valid, as the library does within a user's transaction, and returns their ids, or those of the
-- holders of their keys. The relay publishes them: no process of the library hears of the commit.
-- Each statement sees what is committed by then: the holder of a key that another transaction has just taken, too.
CREATE FUNCTION tenure.insert_jobs(queues text[], kinds text[], payloads jsonb[], keys text[], due timestamptz[],
                                   attempts int[], traces text[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET tenure.by_sql = 'on' SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    began   CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 4096000)::bigint;
    ids     uuid[];
    holders uuid[];
    rooms   jsonb;
    room    bigint;
    waiting bigint;
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
        -- For examples/import: the ids that this call returns and did not make.
        PERFORM set_config('tenure.held', array_to_string(
                    ARRAY(SELECT h FROM unnest(ids, holders) AS u(id, h) WHERE h <> id), ' '), true);
    END IF;
    -- Only the statement that inserted the key creates the job.
    INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, trace_context, dispatch, publish_at,
                             published_at)
    SELECT u.id, u.queue, u.kind, u.payload, u.max_attempts, u.due_at, u.trace_context, 0, u.due_at, NULL
      FROM unnest(ids, holders, queues, kinds, payloads, attempts, due, traces)
           AS u(id, holder, queue, kind, payload, max_attempts, due_at, trace_context)
     WHERE u.id = u.holder;
    RETURN holders;
END $$;
REVOKE ALL ON FUNCTION tenure.insert_jobs(text[], text[], jsonb[], text[], timestamptz[], int[], text[]) FROM PUBLIC;

-- A W3C traceparent as the library passes it on, or NULL if it is not valid.
CREATE FUNCTION tenure.valid_traceparent(traceparent text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT '00-' || part[2] || '-' || part[3] || '-' || part[4]
      FROM regexp_match(trim(traceparent), '^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$') AS part
     WHERE part[1] <> 'ff' AND (part[1] <> '00' OR part[5] IS NULL)
       AND part[2] <> repeat('0', 32) AND part[3] <> repeat('0', 16)
$$;

CREATE FUNCTION tenure.enqueue(queue text, kind text, payload jsonb DEFAULT 'null', unique_key text DEFAULT NULL,
                               run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL,
                               max_attempts int DEFAULT NULL, trace_context text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fault text[] := tenure.fault_in_job(queue, kind, payload, unique_key, run_at, delay, max_attempts);
BEGIN
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'TN003', MESSAGE = fault[1], DETAIL = 'Nothing was enqueued.', HINT = fault[2];
    END IF;
    RETURN (tenure.insert_jobs(ARRAY[queue], ARRAY[kind], ARRAY[coalesce(payload, 'null')], ARRAY[unique_key],
                               ARRAY[coalesce(run_at, clock_timestamp() + coalesce(delay, interval '0'))],
                               ARRAY[coalesce(max_attempts, 5)], ARRAY[tenure.valid_traceparent(trace_context)]))[1];
END $$;
REVOKE ALL ON FUNCTION tenure.enqueue(text, text, jsonb, text, timestamptz, interval, int, text) FROM PUBLIC;
COMMENT ON FUNCTION tenure.enqueue(text, text, jsonb, text, timestamptz, interval, int, text) IS
'Enqueues a job in this transaction: it exists if and when that commits. Returns its id.
queue: 1 to 64 of A-Z a-z 0-9 _ -. kind: such names joined by dots. payload: at most tenure.payload_bytes_max bytes (256 KiB).
unique_key: of two jobs of a queue with one key only the first is created; the second call returns the first one''s id.
run_at, or delay: when it is due, at most ten years ahead. max_attempts: 1 to 1000 (5). trace_context: a W3C traceparent.
Errors: TN003 invalid, TN004 queue full, TN005 queue moved, TN006 queue about to arrive, 40001 begin again.';

CREATE FUNCTION tenure.enqueue_many(jobs jsonb) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    jobs_max CONSTANT int  := 10000;
    of_names CONSTANT text := 'A job has queue, kind, payload, unique_key, run_at, delay, max_attempts and trace_context, '
                              'as the arguments of tenure.enqueue; only queue and kind are required.';
    of_texts CONSTANT text := 'Write a delay as in "90 seconds", and a time as in "2030-01-31T12:00:00Z".';
    bad      record;
    moment   timestamptz := clock_timestamp();
    queues   text[];
    kinds    text[];
    payloads jsonb[];
    keys     text[];
    run_ats  timestamptz[];
    delays   interval[];
    attempts numeric[];
    traces   text[];
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
             SELECT CASE WHEN name <> ALL ('{queue,kind,payload,unique_key,run_at,delay,max_attempts,trace_context}')
                         THEN format('has an unknown field, %s', to_json(left(name, 80)))
                         WHEN jsonb_typeof(value) = 'null' OR name = 'payload' THEN NULL
                         WHEN name = 'max_attempts' AND jsonb_typeof(value) <> 'number'
                           OR name <> 'max_attempts' AND jsonb_typeof(value) <> 'string'
                         THEN format('has a %s of type %s, but it must be a %s', name, jsonb_typeof(value),
                                     CASE name WHEN 'max_attempts' THEN 'number' ELSE 'string' END)
                    END AS what,
                    CASE WHEN name IN ('run_at', 'delay') THEN of_texts ELSE of_names END AS hint
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
    EXCEPTION WHEN data_exception OR invalid_text_representation THEN
        -- A text is no time or no interval: look for the first.
        FOR bad IN
            SELECT e.n - 1 AS n, f.name, f.value
              FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, n)
             CROSS JOIN LATERAL jsonb_each_text(e.job) AS f(name, value)
             WHERE f.name IN ('run_at', 'delay') AND f.value IS NOT NULL
             ORDER BY e.n, f.name
        LOOP
            BEGIN
                IF bad.name = 'run_at' THEN PERFORM bad.value::timestamptz; ELSE PERFORM bad.value::interval; END IF;
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
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'TN003', MESSAGE = format('jobs[%s]: %s', bad.n, bad.fault[1]),
                              DETAIL = 'Nothing was enqueued.', HINT = bad.fault[2];
    END IF;

    RETURN QUERY SELECT unnest(tenure.insert_jobs(queues, kinds, payloads, keys,
        ARRAY(SELECT coalesce(u.run_at, moment + coalesce(u.delay, interval '0'))
                FROM unnest(run_ats, delays) WITH ORDINALITY AS u(run_at, delay, n) ORDER BY u.n),
        ARRAY(SELECT coalesce(u.max_attempts, 5)::int
                FROM unnest(attempts) WITH ORDINALITY AS u(max_attempts, n) ORDER BY u.n),
        traces));
END $$;
REVOKE ALL ON FUNCTION tenure.enqueue_many(jsonb) FROM PUBLIC;
COMMENT ON FUNCTION tenure.enqueue_many(jsonb) IS
'Enqueues many jobs in this transaction, all or none. Returns their ids in order, as tenure.enqueue does of each.
jobs: an array of at most 10,000 objects with the names of the arguments of tenure.enqueue; only queue and kind are required.
run_at and delay are texts, as Postgres reads a timestamptz and an interval.
Errors: those of tenure.enqueue; TN003 names the place of the job in the array, from 0.';

CREATE FUNCTION tenure.cancel(job uuid) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    live tenure.jobs;
BEGIN
    -- Again, if it is redriven in between.
    FOR try IN 1..5 LOOP
        -- As cancel.sql: a handler's repeatable-read transaction protects its row from a reset, but not from this.
        SELECT j.* INTO live FROM tenure.jobs j WHERE j.id = cancel.job FOR NO KEY UPDATE;
        IF live.status = 'processing' THEN
            UPDATE tenure.jobs j
               SET cancel_requested_at = coalesce(j.cancel_requested_at, clock_timestamp())
             WHERE j.id = cancel.job;
            -- The row stays locked until the commit.
            PERFORM tenure.limit_idle(greatest(interval '1 second', live.stale_after / 4));
            RETURN 'asked';
        ELSIF live.status = 'queued' THEN
            DELETE FROM tenure.jobs j WHERE j.id = cancel.job;
            INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
                   claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at,
                   stage, progress, message, trace_context, last_error)
            VALUES (live.id, live.queue, live.kind, live.payload, 'cancelled', live.attempt, live.max_attempts,
                    live.fencing_token, live.claim_id, live.worker_id, live.created_at, live.scheduled_at,
                    live.started_at, live.last_activity_at, clock_timestamp(), live.stage, live.progress, live.message,
                    live.trace_context, live.last_error);
            RETURN 'cancelled';
        ELSIF EXISTS (SELECT FROM tenure.job_history h WHERE h.id = cancel.job)
           OR EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = cancel.job) THEN
            RETURN 'finished';
        END IF;
        EXIT WHEN NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = cancel.job);
    END LOOP;
    RETURN 'not_found';
END $$;
REVOKE ALL ON FUNCTION tenure.cancel(uuid) FROM PUBLIC;
COMMENT ON FUNCTION tenure.cancel(uuid) IS
'Cancels a job. Returns cancelled (it was queued), asked (it runs; its worker stops it within five seconds of the commit,
unless it completes first), finished (it had ended before) or not_found. Safe to repeat.
After asked, the transaction may sit idle for a quarter of the job''s stale_after.';

-- Raises the error of an attempt that does not own its job. The state is read after the wait for the job's row.
CREATE FUNCTION tenure.raise_lost(job uuid, token bigint, claim uuid) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    state text;
    hint  text := 'Roll back and end the program: the job has ended.';
BEGIN
    IF num_nulls(job, token, claim) > 0 THEN
        RAISE EXCEPTION '% is NULL', CASE WHEN job IS NULL THEN 'job' WHEN token IS NULL THEN 'token' ELSE 'claim' END
            USING ERRCODE = 'TN003', DETAIL = 'job, token and claim together name the attempt that calls.',
                  HINT = 'Pass TENURE_JOB_ID, TENURE_FENCING_TOKEN and TENURE_CLAIM_ID as the worker gave them.';
    END IF;
    IF raise_lost.claim::text = ANY (string_to_array(current_setting('tenure.completed', true), ' '))
       OR EXISTS (SELECT FROM tenure.job_history h
                   WHERE h.id = raise_lost.job AND h.claim_id = raise_lost.claim AND h.status = 'completed'
                     AND h.ended_xid = pg_current_xact_id_if_assigned()) THEN
        RAISE EXCEPTION 'this transaction has completed job % already', job
            USING ERRCODE = 'TN008', DETAIL = 'The completion and what this transaction wrote are not committed yet.',
                  HINT = 'Call tenure.complete once, as the last statement, and then commit.';
    ELSIF EXISTS (SELECT FROM tenure.job_history h
                   WHERE h.id = raise_lost.job AND h.claim_id = raise_lost.claim AND h.status = 'completed') THEN
        RAISE EXCEPTION 'job % is already completed by this very attempt', job
            USING ERRCODE = 'TN007',
                  DETAIL = 'An earlier transaction of this attempt completed it, and what that one wrote is committed.',
                  HINT = 'Roll this transaction back, and end the program with success: there is nothing left to do.';
    END IF;
    SELECT CASE WHEN j.status = 'queued' THEN format('The job is queued again, after token %s.', j.fencing_token)
                ELSE format('Worker %s runs it under token %s.', j.worker_id, j.fencing_token) END
      INTO state
      FROM tenure.jobs j WHERE j.id = raise_lost.job;
    IF FOUND THEN
        hint := 'Roll back and end the program. Another attempt does the job.';
    ELSE
        state := coalesce(
            (SELECT format('The job is %s, under token %s.', h.status, h.fencing_token)
               FROM tenure.job_history h WHERE h.id = raise_lost.job),
            (SELECT format('The job is a dead letter, after token %s.', d.fencing_token)
               FROM tenure.dead_letter_jobs d WHERE d.id = raise_lost.job));
        IF state IS NULL THEN
            state := 'There is no such job: it has ended and left nothing, or it never was.';
            hint := 'Roll back and end the program: the job has ended and left nothing, so this attempt or a later one '
                    'has completed it.';
        END IF;
    END IF;
    RAISE EXCEPTION 'this attempt, token %, no longer owns job %', token, job
        USING ERRCODE = 'TN001', DETAIL = state, HINT = hint;
END $$;
REVOKE ALL ON FUNCTION tenure.raise_lost(uuid, bigint, uuid) FROM PUBLIC;

-- Limits how long this transaction may sit idle, unless it has a shorter limit: a program that freezes must not keep
-- the job for ever.
CREATE FUNCTION tenure.limit_idle(most interval) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_is interval := current_setting('idle_in_transaction_session_timeout')::interval;
BEGIN
    IF now_is = interval '0' OR now_is > most THEN
        PERFORM set_config('idle_in_transaction_session_timeout', ceil(extract(epoch FROM most) * 1000)::text, true);
    END IF;
END $$;

-- Whether a row that this transaction sees was written by itself, given the row's xmin: a subtransaction has an id of its
-- own, later than the transaction's.
CREATE FUNCTION tenure.is_own(written_by xid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ours  CONSTANT bigint := pg_current_xact_id_if_assigned()::text::bigint;
    later CONSTANT bigint := (written_by::text::bigint - ours) & 4294967295;
BEGIN
    -- Of other transactions it sees only rows of committed ones. Half of all ids are earlier than this one.
    RETURN coalesce(later < 2147483648 AND pg_xact_status((ours + later)::text::xid8) = 'in progress', false);
END $$;

CREATE FUNCTION tenure.fence(job uuid, token bigint, claim uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    lease interval;
BEGIN
    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        -- As fence.sql.
        UPDATE tenure.jobs j
           SET last_activity_at = clock_timestamp()
         WHERE j.id = fence.job AND j.fencing_token = fence.token AND j.claim_id = fence.claim
           AND j.status = 'processing'
        RETURNING j.stale_after INTO lease;
        IF NOT FOUND THEN
            PERFORM tenure.raise_lost(job, token, claim);
        END IF;
        PERFORM tenure.limit_idle(greatest(interval '1 second', least(interval '10 seconds', lease / 4)));
    ELSE
        -- As lock_job.sql. What ends an attempt locks the row FOR UPDATE: if it came after the snapshot, Postgres refuses
        -- this lock (40001); afterwards it waits. Progress does neither.
        SELECT j.stale_after INTO lease
          FROM tenure.jobs j
         WHERE j.id = fence.job AND j.fencing_token = fence.token AND j.claim_id = fence.claim
           AND j.status = 'processing'
           FOR KEY SHARE OF j;
        IF NOT FOUND THEN
            PERFORM tenure.raise_lost(job, token, claim);
        END IF;
        PERFORM tenure.limit_idle(greatest(interval '1 second', lease / 4));
    END IF;
END $$;
REVOKE ALL ON FUNCTION tenure.fence(uuid, bigint, uuid) FROM PUBLIC;
COMMENT ON FUNCTION tenure.fence(uuid, bigint, uuid) IS
'Lets this transaction commit only if the attempt owns its job, from here to the commit.
READ COMMITTED: call it last; it is also a sign of life. REPEATABLE READ and SERIALIZABLE: call it first, so that no work
is in vain.
job, token, claim: TENURE_JOB_ID, TENURE_FENCING_TOKEN and TENURE_CLAIM_ID.
Call it outside a savepoint, and let its error end the transaction: a program that rolls back to a savepoint and commits
commits what it wrote before the savepoint.
From here on the transaction may sit idle for a quarter of the job''s stale_after, and for at most 10 s at READ COMMITTED.
Errors: TN001 the job is another''s, TN003 an argument is NULL, TN007 this attempt has completed it in an earlier transaction,
TN008 this transaction has completed it, 40001 begin again.';

CREATE FUNCTION tenure.hold(job uuid, token bigint, claim uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    lease interval;
BEGIN
    -- NO KEY UPDATE stops the worker's own progress, too, which passes over a row that is locked: a progress write would
    -- change the row after the snapshot, and Postgres would refuse the completion.
    SELECT j.stale_after INTO lease
      FROM tenure.jobs j
     WHERE j.id = hold.job AND j.fencing_token = hold.token AND j.claim_id = hold.claim AND j.status = 'processing'
       FOR NO KEY UPDATE OF j;
    IF NOT FOUND THEN
        PERFORM tenure.raise_lost(job, token, claim);
    END IF;
    PERFORM tenure.limit_idle(greatest(interval '1 second', lease / 4));
END $$;
REVOKE ALL ON FUNCTION tenure.hold(uuid, bigint, uuid) FROM PUBLIC;
COMMENT ON FUNCTION tenure.hold(uuid, bigint, uuid) IS
'The first statement of a transaction at REPEATABLE READ or SERIALIZABLE that ends with tenure.complete: checks the fence,
and keeps the job''s row as it is until then. Progress, resets and cancellations of the job wait or pass by; keep it short.
Arguments, idle limit and errors: as tenure.fence.';

CREATE FUNCTION tenure.once(job uuid, token bigint, claim uuid, key text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    lease interval;
BEGIN
    IF tenure.is_key(once.key) IS NOT TRUE THEN
        RAISE EXCEPTION 'key % is not a valid key', coalesce(to_json(left(once.key, 80))::text, 'NULL')
            USING ERRCODE = 'TN003', DETAIL = 'A key has 1 to 512 bytes, and no control characters.',
                  HINT = 'Name the effect within its job, as in charge-card.';
    END IF;
    -- KEY SHARE, at each isolation level: from here to the commit no session can end the attempt.
    SELECT j.stale_after INTO lease
      FROM tenure.jobs j
     WHERE j.id = once.job AND j.fencing_token = once.token AND j.claim_id = once.claim AND j.status = 'processing'
       FOR KEY SHARE OF j;
    IF NOT FOUND THEN
        PERFORM tenure.raise_lost(once.job, once.token, once.claim);
    END IF;
    PERFORM tenure.limit_idle(greatest(interval '1 second', lease / 4));
    -- A second attempt waits here for the first one's commit.
    INSERT INTO tenure.effects (job_id, key, fencing_token, result)
    VALUES (once.job, once.key, once.token, 'null')
        ON CONFLICT (job_id, key) DO NOTHING;
    RETURN FOUND;
END $$;
REVOKE ALL ON FUNCTION tenure.once(uuid, bigint, uuid, text) FROM PUBLIC;
COMMENT ON FUNCTION tenure.once(uuid, bigint, uuid, text) IS
'Begins an effect that must happen once for its job, however often the job is tried. True: do it in this transaction, whose
commit records both. False: an earlier transaction did it; tenure.once_result returns what it stored.
Call it before the effect; at REPEATABLE READ and SERIALIZABLE first of all. It is a fence for the whole transaction.
key: the effect''s name within the job, 1 to 512 bytes. Other arguments, idle limit and errors: as tenure.fence.';

CREATE FUNCTION tenure.once_store(job uuid, token bigint, claim uuid, key text, result jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    lease interval;
BEGIN
    SELECT j.stale_after INTO lease
      FROM tenure.jobs j
     WHERE j.id = once_store.job AND j.fencing_token = once_store.token AND j.claim_id = once_store.claim
       AND j.status = 'processing'
       FOR KEY SHARE OF j;
    IF NOT FOUND THEN
        PERFORM tenure.raise_lost(once_store.job, once_store.token, once_store.claim);
    END IF;
    PERFORM tenure.limit_idle(greatest(interval '1 second', lease / 4));
    -- A committed result stays as it is.
    UPDATE tenure.effects e
       SET result = coalesce(once_store.result, 'null')
     WHERE e.job_id = once_store.job AND e.key = once_store.key AND e.fencing_token = once_store.token
       AND tenure.is_own(e.xmin);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this transaction has not begun effect %',
                        coalesce(to_json(left(once_store.key, 80))::text, 'NULL')
            USING ERRCODE = 'TN003', DETAIL = 'Only the transaction whose tenure.once returned true stores the result.',
                  HINT = 'Call tenure.once first, in the same transaction, and store nothing if it returns false.';
    END IF;
END $$;
REVOKE ALL ON FUNCTION tenure.once_store(uuid, bigint, uuid, text, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION tenure.once_store(uuid, bigint, uuid, text, jsonb) IS
'Stores the result of an effect that this transaction does: tenure.once returned true for its key. Later attempts read it
with tenure.once_result.
Errors: those of tenure.fence; TN003 also if this transaction has not begun the effect: a committed result stays.';

CREATE FUNCTION tenure.once_result(job uuid, key text) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    -- VOLATILE: in one statement with `once` it sees what that has waited for.
    RETURN (SELECT e.result FROM tenure.effects e WHERE e.job_id = once_result.job AND e.key = once_result.key);
END $$;
REVOKE ALL ON FUNCTION tenure.once_result(uuid, text) FROM PUBLIC;
COMMENT ON FUNCTION tenure.once_result(uuid, text) IS
'Returns the stored result of an effect: JSON null if none was stored, NULL if the effect has not happened.';

CREATE FUNCTION tenure.complete(job uuid, token bigint, claim uuid, output jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    done    tenure.jobs;
    is_kept boolean;
BEGIN
    -- It waits for the row's lock: its verdict ends the transaction.
    DELETE FROM tenure.jobs j
     WHERE j.id = complete.job AND j.fencing_token = complete.token AND j.claim_id = complete.claim
       AND j.status = 'processing'
    RETURNING j.* INTO done;
    IF NOT FOUND THEN
        PERFORM tenure.raise_lost(job, token, claim);
    END IF;
    PERFORM tenure.limit_idle(greatest(interval '1 second', least(interval '10 seconds', done.stale_after / 4)));
    -- A kind without history leaves no row that tells this transaction's second call.
    PERFORM set_config('tenure.completed',
                       concat_ws(' ', nullif(current_setting('tenure.completed', true), ''), done.claim_id), true);
    -- The worker that runs the job says of which kinds it keeps no history.
    is_kept := NOT coalesce((SELECT w.unkept && ARRAY[done.kind, '*'] FROM tenure.workers w
                              WHERE w.worker_id = done.worker_id), false);
    IF is_kept THEN
        INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
               claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at,
               stage, progress, message, output, trace_context, last_error)
        VALUES (done.id, done.queue, done.kind, done.payload, 'completed', done.attempt, done.max_attempts,
                done.fencing_token, done.claim_id, done.worker_id, done.created_at, done.scheduled_at, done.started_at,
                done.last_activity_at, clock_timestamp(), done.stage, done.progress, done.message, complete.output,
                done.trace_context, done.last_error);
    ELSE
        -- As complete_unkept.sql.
        UPDATE tenure.job_keys k SET ended_at = clock_timestamp() WHERE k.job_id = done.id;
        PERFORM tenure.forget_traces(done.id);
    END IF;
END $$;
REVOKE ALL ON FUNCTION tenure.complete(uuid, bigint, uuid, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION tenure.complete(uuid, bigint, uuid, jsonb) IS
'Completes the job in this transaction: what the transaction wrote and the completion are one commit, or neither happens.
Call it last and outside a savepoint, and let its error end the transaction: see tenure.fence. The transaction may sit idle
for at most 10 s afterwards. At REPEATABLE READ and SERIALIZABLE, begin with
tenure.hold. The worker learns of it: the program''s exit code then has no effect.
output: what the finished job shows. Other arguments and errors: as tenure.fence.';

CREATE FUNCTION tenure.progress(job uuid, token bigint, claim uuid, stage text DEFAULT NULL,
                                progress double precision DEFAULT NULL, message text DEFAULT NULL,
                                checkpoint jsonb DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    percent real := CASE WHEN progress.progress <> 'NaN' THEN greatest(0, least(100, progress.progress)) END;
    most    text := coalesce(nullif(current_setting('tenure.checkpoint_bytes_max', true), ''), '1048576');
    asked   boolean;
    lease   interval;
BEGIN
    IF most !~ '^[0-9]{1,10}$' THEN
        RAISE EXCEPTION 'the setting tenure.checkpoint_bytes_max is %, but must be a number of bytes', to_json(most)
            USING ERRCODE = 'TN003', HINT = 'Write it without a unit, as in 1048576.';
    ELSIF octet_length(progress.checkpoint::text) > most::bigint THEN
        RAISE EXCEPTION 'the checkpoint has % bytes, but at most % are allowed',
                        octet_length(progress.checkpoint::text), most
            USING ERRCODE = 'TN003', DETAIL = 'The size counts as Postgres writes the checkpoint as text.',
                  HINT = 'Store the state elsewhere and keep a reference, or raise the limit: '
                         'ALTER DATABASE … SET tenure.checkpoint_bytes_max = … (a number of bytes).';
    END IF;
    UPDATE tenure.jobs j
       SET last_activity_at = clock_timestamp(),
           stage            = coalesce(progress.stage, j.stage),
           progress         = coalesce(percent, j.progress),
           message          = coalesce(progress.message, j.message),
           checkpoint       = coalesce(progress.checkpoint, j.checkpoint)
     WHERE j.id = progress.job AND j.fencing_token = progress.token AND j.claim_id = progress.claim
       AND j.status = 'processing'
    RETURNING j.cancel_requested_at IS NOT NULL, j.stale_after INTO asked, lease;
    IF NOT FOUND THEN
        PERFORM tenure.raise_lost(progress.job, progress.token, progress.claim);
    END IF;
    PERFORM tenure.limit_idle(greatest(interval '1 second', lease / 4));
    RETURN asked;
END $$;
REVOKE ALL ON FUNCTION tenure.progress(uuid, bigint, uuid, text, double precision, text, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION tenure.progress(uuid, bigint, uuid, text, double precision, text, jsonb) IS
'A sign of life of the attempt, with a report. Returns true once a cancellation of the job was asked for: stop, then.
Call it in a transaction of its own: others see it when that commits, and the job''s row is locked until then.
progress: percent, 0 to 100. checkpoint: what the next attempt gets if this one does not complete, at most
tenure.checkpoint_bytes_max bytes. What is left out stays as it was.
Other arguments and errors: as tenure.fence.';
