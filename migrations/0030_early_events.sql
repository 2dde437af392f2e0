-- Groups and events: an event that comes before its wait takes no name from a step; what wakes a job does not end the pause
-- before a retry; and to cancel a follower that a failure has cancelled lasts.

-- As before; but an event that comes before its wait stands under a name that no step can have, until a wait finds it: or one
-- who knows the job's id alone could end the job, by an event with the name of a step that has not run.
CREATE OR REPLACE FUNCTION tenure.await_event(job uuid, token bigint, claim uuid, name text, patience interval, OUT answer text,
                                              OUT payload text, OUT left_s float8)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known tenure.effects;
BEGIN
    PERFORM FROM tenure.jobs j
      WHERE j.id = job AND j.fencing_token = token AND j.claim_id = claim AND j.status = 'processing'
        FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        answer := 'lost';
        RETURN;
    END IF;
    UPDATE tenure.jobs j SET last_activity_at = clock_timestamp() WHERE j.id = job;
    -- It came when it came: an attempt that waits for another one, too, is not woken by it.
    INSERT INTO tenure.effects (job_id, key, fencing_token, result, step_kind, began_at, created_at)
    SELECT job, name, token, e.result, 'event', e.began_at, e.created_at
      FROM tenure.effects e WHERE e.job_id = job AND e.key = E'\x01' || name
        ON CONFLICT (job_id, key) DO NOTHING;
    INSERT INTO tenure.effects (job_id, key, fencing_token, result, step_kind, began_at, wakes_at)
    VALUES (job, name, token, 'null', 'awaited', clock_timestamp(), clock_timestamp() + patience)
        ON CONFLICT (job_id, key) DO NOTHING;
    SELECT * INTO known FROM tenure.effects e WHERE e.job_id = job AND e.key = name;
    IF known.step_kind = 'awaited' AND known.wakes_at <= clock_timestamp() THEN
        UPDATE tenure.effects e SET step_kind = 'late', fencing_token = token WHERE e.job_id = job AND e.key = name;
        known.step_kind := 'late';
    END IF;
    answer := CASE known.step_kind WHEN 'awaited' THEN 'waits' WHEN 'event' THEN 'came' WHEN 'late' THEN 'late' ELSE 'taken' END;
    payload := CASE answer WHEN 'came' THEN known.result::text END;
    left_s := CASE answer WHEN 'waits' THEN extract(epoch FROM known.wakes_at - clock_timestamp()) END;
END $$;

-- As before; see `await_event`.
CREATE OR REPLACE FUNCTION tenure.signal(job uuid, name text, payload jsonb DEFAULT 'null') RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    live  tenure.jobs;
    known tenure.effects;
    fault CONSTANT text[] := tenure.fault_in_job('queue', 'kind', coalesce(payload, 'null'), NULL, NULL, NULL, NULL);
BEGIN
    IF name IS NULL OR octet_length(name) NOT BETWEEN 1 AND 512 OR NOT tenure.is_key(name) THEN
        RAISE EXCEPTION 'name is % (% bytes), but must have 1 to 512 bytes and no control characters',
                        to_json(left(name, 80)), octet_length(name)
            USING ERRCODE = 'TN003', HINT = 'It is the name that the job gives to ctx.event.';
    ELSIF fault IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'TN003', MESSAGE = fault[1], DETAIL = 'Nothing was signalled.', HINT = fault[2];
    END IF;
    -- Again, if it is redriven in between.
    FOR try IN 1..5 LOOP
        SELECT * INTO live FROM tenure.jobs j WHERE j.id = job FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        IF EXISTS (SELECT FROM tenure.job_history h WHERE h.id = job)
           OR EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = job) THEN
            RETURN 'finished';
        END IF;
    END LOOP;
    IF live.id IS NULL THEN
        RETURN 'not_found';
    ELSIF live.status = 'processing' THEN
        -- The row stays locked until the commit, and its worker must write to it.
        PERFORM tenure.limit_idle(greatest(interval '1 second', live.stale_after / 4));
    END IF;
    SELECT * INTO known FROM tenure.effects e WHERE e.job_id = job AND e.key = name;
    IF NOT FOUND THEN
        INSERT INTO tenure.effects (job_id, key, fencing_token, result, step_kind, began_at)
        VALUES (job, E'\x01' || name, live.fencing_token, coalesce(payload, 'null'), 'event', clock_timestamp())
            ON CONFLICT (job_id, key) DO NOTHING;
        IF NOT FOUND THEN
            RETURN 'known';
        END IF;
        -- Its attempt may have been about to wait for this one, too.
        IF live.fencing_token > 0
           AND (EXISTS (SELECT FROM tenure.effects e WHERE e.job_id = job AND e.step_kind = 'awaited')
                OR EXISTS (SELECT FROM tenure.job_edges d WHERE d.after = job AND d.state IS NULL AND d.step IS NOT NULL)) THEN
            PERFORM tenure.wake_jobs(ARRAY[job]);
        END IF;
        RETURN 'signalled';
    ELSIF known.step_kind IS DISTINCT FROM 'awaited' THEN
        RETURN CASE known.step_kind WHEN 'event' THEN 'known' WHEN 'late' THEN 'late' ELSE 'taken' END;
    ELSIF known.wakes_at <= clock_timestamp() THEN
        RETURN 'late';
    END IF;
    UPDATE tenure.effects e
       SET result = coalesce(payload, 'null'), step_kind = 'event', created_at = clock_timestamp()
     WHERE e.job_id = job AND e.key = name;
    PERFORM tenure.wake_jobs(ARRAY[job]);
    RETURN 'signalled';
END $$;

-- As before, and without those that pause before a retry: that ends by itself, and the attempt then sees what has come.
CREATE OR REPLACE FUNCTION tenure.wake_jobs(ids uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    never  CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    moment CONSTANT timestamptz := clock_timestamp();
    wakes  CONSTANT uuid[] := ARRAY(
        SELECT u.id FROM unnest(ids) AS u(id)
         WHERE (SELECT e.outcome FROM tenure.job_executions e
                 WHERE e.job_id = u.id ORDER BY e.fencing_token DESC LIMIT 1) IS DISTINCT FROM 'retried');
BEGIN
    -- They were held before their queue had lanes.
    WITH late AS (
        INSERT INTO tenure.lane_jobs (job_id, queue, lane, priority, due_at)
        SELECT j.id, j.queue, coalesce(j.lane, ''), CASE WHEN s.ordered THEN 0 ELSE coalesce(j.priority, 0) END, never
          FROM tenure.jobs j
          JOIN tenure.lane_settings s ON s.queue = j.queue AND s.removed_at IS NULL
         WHERE j.id = ANY (wakes) AND j.status = 'queued' AND (j.publish_at = never) IS TRUE
            ON CONFLICT (job_id) DO NOTHING
        RETURNING job_id, lane
    )
    UPDATE tenure.jobs j
       SET lane = late.lane, priority = coalesce(j.priority, 0)
      FROM late WHERE j.id = late.job_id AND j.lane IS NULL;
    WITH lined AS (
        UPDATE tenure.lane_jobs l
           SET due_at = moment,
               place = CASE WHEN coalesce((SELECT s.ordered FROM tenure.lane_settings s WHERE s.queue = l.queue), false)
                            THEN 0 ELSE (extract(epoch FROM moment) * 1000000)::bigint END
         WHERE l.job_id = ANY (wakes) AND l.due_at > moment
        RETURNING l.queue, l.lane
    )
    INSERT INTO tenure.lane_wakes (at, queue, lane) SELECT DISTINCT moment, queue, lane FROM lined;
    UPDATE tenure.jobs j
       SET scheduled_at = moment, publish_at = moment, published_at = NULL
     WHERE j.id = ANY (wakes) AND j.status = 'queued' AND (j.publish_at > moment) IS TRUE
       AND NOT EXISTS (SELECT FROM tenure.lane_jobs l WHERE l.job_id = j.id);
END $$;

-- Lets these followers stay cancelled that a failure has cancelled, also if what has failed is redriven. One that comes back just
-- now does so. Returns them. A redrive locks them in the same order.
-- SECURITY DEFINER: who may cancel a job may not change what it waits for.
CREATE FUNCTION tenure.keep_cancelled(ids uuid[]) RETURNS SETOF uuid
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
    WITH cut AS MATERIALIZED (
        SELECT f.job_id FROM tenure.followers f
         WHERE f.job_id = ANY (ids) AND f.cut_at IS NOT NULL
           AND EXISTS (SELECT FROM tenure.job_history h WHERE h.id = f.job_id AND h.status = 'cancelled')
         ORDER BY f.job_id
           FOR NO KEY UPDATE
    )
    UPDATE tenure.followers f SET cut_at = NULL FROM cut WHERE f.job_id = cut.job_id
    RETURNING f.job_id;
$$;
REVOKE ALL ON FUNCTION tenure.keep_cancelled(uuid[]) FROM PUBLIC;
-- Workers and operators cancel jobs: without the right, they could not.
CREATE FUNCTION tenure.pass_rights_to_cancel() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of record;
BEGIN
    FOR of IN
        SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role
          FROM pg_proc p, aclexplode(p.proacl) a
         WHERE p.oid IN ('tenure.release_followers(int)'::regprocedure, 'tenure.cancel(uuid)'::regprocedure)
           AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION tenure.keep_cancelled(uuid[]) TO %s', of.role);
    END LOOP;
END $$;
SELECT tenure.pass_rights_to_cancel();
DROP FUNCTION tenure.pass_rights_to_cancel();

-- As before; and one that a failure has cancelled stays so.
CREATE OR REPLACE FUNCTION tenure.cancel(job uuid) RETURNS text
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
            INSERT INTO tenure.audit (via, act, queue, subject, jobs)
            SELECT 'sql', 'cancel', live.queue, cancel.job::text, 1 WHERE live.cancel_requested_at IS NULL;
            -- The row stays locked until the commit.
            PERFORM tenure.limit_idle(greatest(interval '1 second', live.stale_after / 4));
            RETURN 'asked';
        ELSIF live.status = 'queued' THEN
            IF live.lane IS NOT NULL THEN
                DELETE FROM tenure.lane_jobs l WHERE l.job_id = cancel.job;
                -- Its slot, or its place at the head of an ordered lane.
                INSERT INTO tenure.lane_wakes (at, queue, lane) VALUES (clock_timestamp(), live.queue, live.lane);
            END IF;
            INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
                   claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at,
                   stage, progress, message, trace_context, last_error)
            VALUES (live.id, live.queue, live.kind, live.payload, 'cancelled', live.attempt, live.max_attempts,
                    live.fencing_token, live.claim_id, live.worker_id, live.created_at,
                    least(live.scheduled_at, clock_timestamp()), live.started_at, live.last_activity_at,
                    clock_timestamp(), live.stage, live.progress, live.message, live.trace_context, live.last_error);
            DELETE FROM tenure.jobs j WHERE j.id = cancel.job;
            INSERT INTO tenure.audit (via, act, queue, subject, jobs)
            VALUES ('sql', 'cancel', live.queue, cancel.job::text, 1);
            RETURN 'cancelled';
        ELSIF EXISTS (SELECT FROM tenure.job_history h WHERE h.id = cancel.job)
           OR EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = cancel.job) THEN
            INSERT INTO tenure.audit (via, act, queue, subject, jobs)
            SELECT 'sql', 'cancel', (SELECT h.queue FROM tenure.job_history h WHERE h.id = k.id), k.id::text, 1
              FROM tenure.keep_cancelled(ARRAY[cancel.job]) AS k (id);
            RETURN 'finished';
        END IF;
        EXIT WHEN NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = cancel.job);
    END LOOP;
    RETURN 'not_found';
END $$;
