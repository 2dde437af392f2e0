-- Enqueues at most 10,000 jobs in the caller's transaction, all or none: objects with the arguments of `enqueue`.
-- Returns an id a job, in order; of a key that is taken, the holder's.
--
-- Programs call it: docs/sql.md. A wrong job raises TN003 with its place in the array and a hint.
-- It runs with the caller's rights: who may not insert a job may not enqueue one.
-- Two calls at once with one key: the second waits for the first one's transaction. If the answer is lost, a second
-- call with the same keys finds the jobs.
CREATE OR REPLACE FUNCTION tenure.enqueue_many(jobs jsonb) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    rarer    CONSTANT text[] := '{lane,priority,not_after,on_expiry,replace,longest_wait,unique_while_queued,'
                                'unique_while_live,tags}';
    moment   CONSTANT timestamptz := clock_timestamp();
    fault    text[] := tenure.fault_in_fields(jobs);
    queues   text[];
    kinds    text[];
    payloads jsonb[];
    keys     text[];
    run_ats  timestamptz[];
    delays   interval[];
    attempts numeric[];
    traces   text[];
    options  jsonb[];
    faults   text[];
    hints    text[];
BEGIN
    IF fault IS NULL THEN
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
            -- Reading them always makes 100 plain jobs a sixth dearer.
            IF EXISTS (SELECT FROM jsonb_array_elements(jobs) AS e(job) WHERE e.job ?| rarer) THEN
                SELECT o.* INTO options, faults, hints FROM tenure.read_options(jobs) AS o;
            END IF;
        EXCEPTION WHEN data_exception THEN
            fault := tenure.fault_in_times(jobs);
            IF fault IS NULL THEN
                RAISE;
            END IF;
        END;
    END IF;
    IF fault IS NULL THEN
        SELECT ARRAY[format('jobs[%s]: %s', u.n - 1, coalesce(f.fault[1], u.fault)), coalesce(f.fault[2], u.hint)]
          INTO fault
          FROM unnest(queues, kinds, payloads, keys, run_ats, delays, attempts, faults, hints) WITH ORDINALITY
               AS u(queue, kind, payload, key, run_at, delay, max_attempts, fault, hint, n)
         CROSS JOIN LATERAL (
             SELECT tenure.fault_in_job(u.queue, u.kind, u.payload, u.key, u.run_at, u.delay,
                                        u.max_attempts) AS fault) f
         WHERE f.fault IS NOT NULL OR u.fault IS NOT NULL
         ORDER BY u.n LIMIT 1;
    END IF;
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'TN003', MESSAGE = fault[1], DETAIL = 'Nothing was enqueued.', HINT = fault[2];
    ELSIF queues IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT unnest(tenure.create_jobs(queues, kinds, payloads, keys,
        ARRAY(SELECT coalesce(u.run_at, moment + coalesce(u.delay, interval '0'))
                FROM unnest(run_ats, delays) WITH ORDINALITY AS u(run_at, delay, n) ORDER BY u.n),
        ARRAY(SELECT coalesce(u.max_attempts, 5)::int
                FROM unnest(attempts) WITH ORDINALITY AS u(max_attempts, n) ORDER BY u.n),
        traces, options));
END $$;

REVOKE ALL ON FUNCTION tenure.enqueue_many(jsonb) FROM PUBLIC;

COMMENT ON FUNCTION tenure.enqueue_many(jsonb) IS
'Enqueues many jobs in this transaction, all or none. Returns their ids in order, as tenure.enqueue does of each.
jobs: an array of at most 10,000 objects with the names of the arguments of tenure.enqueue; only queue and kind are
required.
run_at, not_after, delay and longest_wait are texts, as Postgres reads a timestamptz and an interval.
Of several jobs with one key of replace, the last one counts.
Errors: those of tenure.enqueue; TN003 names the place of the job in the array, from 0.';
