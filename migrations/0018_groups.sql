-- Groups: jobs that wait for other jobs. Events: what a running job waits for from outside.
--
-- A *follower* is held, as a job of a lane is: it is queued, its `publish_at` never comes, and so no claim takes it. An
-- edge says for which job it waits. The transaction that ends a job of a group, whichever that is, notes the end in
-- `group_ends` by a trigger; `tenure.release_followers` works the notes off, and its caller publishes what it releases.
-- So neither an old program nor a killed worker can lose an end, and plain jobs pay for no part of this.

-- The group of a job: NULL for one that neither waits for a job nor is waited for.
ALTER TABLE tenure.jobs ADD COLUMN group_id uuid;

-- A row for each job that waits for others, before it starts or between two attempts. on_failure: what it does when a job
-- before it has failed or was cancelled. cut_at: that has cancelled it; lane and priority are those that it had.
CREATE TABLE tenure.followers (
    job_id       uuid        PRIMARY KEY,
    group_id     uuid        NOT NULL,
    on_failure   text        NOT NULL CHECK (on_failure IN ('cancel', 'run', 'hold')),
    cut_at       timestamptz,
    lane         text,
    priority     smallint
);

-- `after` waits for `before`. n: the order in which a follower sees what came before it. step: NULL, or the call of a
-- running job that waits. state: how `before` has ended; NULL: it has not. output: what it left, for as long as a
-- follower may read it.
CREATE TABLE tenure.job_edges (
    before       uuid        NOT NULL,
    after        uuid        NOT NULL,
    group_id     uuid        NOT NULL,
    n            bigint      GENERATED ALWAYS AS IDENTITY,
    step         text,
    state        text,
    ended_at     timestamptz,
    output       jsonb,
    PRIMARY KEY (before, after)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX job_edges_in_order ON tenure.job_edges (after, n);
CREATE INDEX job_edges_open ON tenure.job_edges (after, state) WHERE state IS NULL OR state <> 'completed';
CREATE INDEX job_edges_of_group ON tenure.job_edges (group_id);

-- Jobs of groups that have ended, until their followers know.
CREATE TABLE tenure.group_ends (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id       uuid        NOT NULL,
    ended_as     text        NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

-- Notes how a job has ended, as its transaction commits: by then it is written what has become of it.
-- SECURITY DEFINER: who may end a job need not know of groups.
CREATE FUNCTION tenure.note_group_end() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO tenure.group_ends (job_id, ended_as)
    SELECT OLD.id,
           coalesce((SELECT h.status FROM tenure.job_history h WHERE h.id = OLD.id),
                    CASE WHEN EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = OLD.id) THEN 'failed'
                         -- Its kind keeps no history.
                         ELSE 'completed' END);
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION tenure.note_group_end() FROM PUBLIC;
CREATE CONSTRAINT TRIGGER ends_in_group AFTER DELETE ON tenure.jobs DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (OLD.group_id IS NOT NULL) EXECUTE FUNCTION tenure.note_group_end();

-- Makes held jobs due that have waited between two attempts, or in a lane. The caller has locked their rows.
CREATE FUNCTION tenure.wake_jobs(ids uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    WITH lined AS (
        UPDATE tenure.lane_jobs l
           SET due_at = moment,
               place = CASE WHEN coalesce((SELECT s.ordered FROM tenure.lane_settings s WHERE s.queue = l.queue), false)
                            THEN 0 ELSE (extract(epoch FROM moment) * 1000000)::bigint END
         WHERE l.job_id = ANY (ids) AND l.due_at > moment
        RETURNING l.queue, l.lane
    )
    INSERT INTO tenure.lane_wakes (at, queue, lane) SELECT DISTINCT moment, queue, lane FROM lined;
    UPDATE tenure.jobs j
       SET scheduled_at = moment, publish_at = moment, published_at = NULL
     WHERE j.id = ANY (ids) AND j.status = 'queued' AND j.publish_at > moment
       AND NOT EXISTS (SELECT FROM tenure.lane_jobs l WHERE l.job_id = j.id);
END $$;
REVOKE ALL ON FUNCTION tenure.wake_jobs(uuid[]) FROM PUBLIC;

-- Works off the ends of jobs of groups: settles their edges, and releases, cancels or restores the followers.
--
--   most: how many ends, and how many followers, one call takes
--
-- Returns the released jobs, for the caller to publish: if it dies, the relay finds their messages missing. A last row
-- without an id: there is more to do.
-- Each statement of a plpgsql function sees what is committed when it begins. So of two calls that settle the last edges of
-- one follower, the second waits for the follower's row, and then sees that none is left. Locks are taken in this order:
-- ends, followers, edges, jobs, places in lanes; rows of one table in order of id.
CREATE FUNCTION tenure.release_followers(most int)
RETURNS TABLE (id uuid, queue text, kind text, dispatch int, clear_reason text, trace_context text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET plan_cache_mode = force_generic_plan SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    never  CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    moment timestamptz;
    noted  bigint[];
    ended  uuid[];
    fates  text[];
    touched uuid[];
    settled jsonb;
    ready  uuid[];
    doomed uuid[];
    woken  uuid[];
    of     record;
BEGIN
    -- 1. The ends. Of two ends of one job, the later one counts; a job that is live again has not ended.
    SELECT array_agg(e.id) INTO noted
      FROM (SELECT id FROM tenure.group_ends ORDER BY id LIMIT most FOR UPDATE SKIP LOCKED) e;
    IF noted IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(e.job_id), array_agg(e.ended_as) INTO ended, fates
      FROM (SELECT DISTINCT ON (g.job_id) g.job_id, g.ended_as
              FROM tenure.group_ends g WHERE g.id = ANY (noted) ORDER BY g.job_id, g.id DESC) e
     WHERE e.ended_as = 'completed' OR NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = e.job_id);

    -- 2. Their followers. A fate replaces none that is better: calls may come in another order than the ends did.
    SELECT array_agg(f.job_id) INTO touched
      FROM (SELECT f.job_id FROM tenure.followers f
             WHERE f.job_id = ANY (ARRAY(
                   SELECT DISTINCT d.after
                     FROM unnest(ended, fates) AS e(job, fate)
                     JOIN tenure.job_edges d ON d.before = e.job
                    WHERE d.state IS NULL OR e.fate = 'completed' AND d.state <> 'completed'
                       OR e.fate = 'purged' AND d.state = 'failed'
                    LIMIT most))
             ORDER BY f.job_id FOR NO KEY UPDATE) f;
    WITH moved AS (
        UPDATE tenure.job_edges d
           SET state = e.fate, ended_at = clock_timestamp(),
               output = CASE WHEN e.fate = 'completed'
                             THEN (SELECT h.output FROM tenure.job_history h WHERE h.id = d.before) END
          FROM unnest(ended, fates) AS e(job, fate)
         WHERE d.before = e.job AND d.after = ANY (touched)
           AND (d.state IS NULL OR e.fate = 'completed' AND d.state <> 'completed'
                OR e.fate = 'purged' AND d.state = 'failed')
        RETURNING d.after, d.step
    )
    SELECT jsonb_agg(DISTINCT jsonb_build_array(after, step)) INTO settled FROM moved;

    -- 3. What becomes of each.
    SELECT array_agg(v.job_id) FILTER (WHERE NOT v.waits AND (v.on_failure = 'run' OR NOT v.lacks)),
           array_agg(v.job_id) FILTER (WHERE v.on_failure = 'cancel' AND v.lacks
                                          -- What cannot be redriven will not come.
                                          OR v.on_failure = 'hold' AND v.is_beyond_redrive)
      INTO ready, doomed
      FROM (SELECT f.job_id, f.on_failure, s.waits, s.lacks, s.is_beyond_redrive
              FROM tenure.followers f
             CROSS JOIN LATERAL (
                   SELECT coalesce(bool_or(d.state IS NULL), false) AS waits,
                          coalesce(bool_or(d.state IS NOT NULL), false) AS lacks,
                          coalesce(bool_or(d.state <> 'failed'), false) AS is_beyond_redrive
                     FROM ((SELECT d.state FROM tenure.job_edges d
                             WHERE d.after = f.job_id AND d.state IS NULL AND d.step IS NULL LIMIT 1)
                           UNION ALL
                           (SELECT d.state FROM tenure.job_edges d
                             WHERE d.after = f.job_id AND d.state <> 'completed' AND d.step IS NULL
                             ORDER BY d.state LIMIT 1)
                           UNION ALL
                           (SELECT d.state FROM tenure.job_edges d
                             WHERE d.after = f.job_id AND d.state = 'purged' AND d.step IS NULL LIMIT 1)) d) s
             WHERE f.job_id = ANY (ARRAY(SELECT (w ->> 0)::uuid FROM jsonb_array_elements(settled) AS w
                                          WHERE w ->> 1 IS NULL))) v;
    SELECT array_agg(DISTINCT w.job) INTO woken
      FROM (SELECT (w ->> 0)::uuid AS job, w ->> 1 AS step FROM jsonb_array_elements(settled) AS w) w
     WHERE w.step IS NOT NULL
       AND NOT EXISTS (SELECT FROM tenure.job_edges d
                        WHERE d.after = w.job AND d.state IS NULL AND d.step = w.step);

    -- 4. A follower that was cancelled by a job's failure comes back once that job has completed after all.
    IF EXISTS (SELECT FROM tenure.followers f WHERE f.job_id = ANY (ready) AND f.cut_at IS NOT NULL) THEN
        WITH back AS (
            DELETE FROM tenure.job_history h
             WHERE h.id = ANY (ARRAY(SELECT f.job_id FROM tenure.followers f
                                      WHERE f.job_id = ANY (ready) AND f.cut_at IS NOT NULL))
               AND h.status = 'cancelled'
            RETURNING h.*
        ), uncut AS (
            UPDATE tenure.followers f SET cut_at = NULL WHERE f.job_id = ANY (ARRAY(SELECT b.id FROM back b))
        )
        INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, fencing_token, created_at, scheduled_at,
               trace_context, dispatch, publish_at, lane, priority, group_id)
        SELECT b.id, b.queue, b.kind, b.payload, b.max_attempts, b.fencing_token, b.created_at, clock_timestamp(),
               b.trace_context, 0, clock_timestamp(), f.lane, f.priority, f.group_id
          FROM back b JOIN tenure.followers f ON f.job_id = b.id;
    END IF;

    -- 5. The rest has a row among the live jobs, or has ended by itself. The locks come first: a job that is about to be
    -- held either is held by now, or will see the edges.
    PERFORM FROM tenure.jobs j WHERE j.id = ANY (ready || doomed || woken) ORDER BY j.id FOR NO KEY UPDATE;
    moment := clock_timestamp();
    FOR of IN
        SELECT j.id, j.lane, j.priority, d.before, d.state
          FROM tenure.jobs j
         CROSS JOIN LATERAL (SELECT d.before, d.state FROM tenure.job_edges d
                              WHERE d.after = j.id AND d.state <> 'completed' AND d.step IS NULL LIMIT 1) d
         WHERE j.id = ANY (doomed) AND j.status = 'queued' AND j.publish_at = never
         ORDER BY j.id
    LOOP
        UPDATE tenure.followers f SET cut_at = moment, lane = of.lane, priority = of.priority WHERE f.job_id = of.id;
        UPDATE tenure.jobs j
           SET last_error = format('job %s, which it was to follow, %s', of.before,
                                   CASE of.state WHEN 'cancelled' THEN 'was cancelled' WHEN 'purged' THEN 'was purged'
                                        ELSE 'has failed' END)
         WHERE j.id = of.id;
        PERFORM tenure.cancel(of.id);
    END LOOP;
    PERFORM tenure.wake_jobs(woken || ARRAY(SELECT l.job_id FROM tenure.lane_jobs l WHERE l.job_id = ANY (ready)));
    RETURN QUERY
    UPDATE tenure.jobs j
       SET dispatch = j.dispatch + 1, scheduled_at = moment, publish_at = NULL, published_at = clock_timestamp()
     WHERE j.id = ANY (ready) AND j.status = 'queued' AND j.publish_at = never
       AND NOT EXISTS (SELECT FROM tenure.lane_jobs l WHERE l.job_id = j.id)
    RETURNING j.id, j.queue, j.kind, j.dispatch, j.clear_reason, j.trace_context;

    -- 6. One call settles the edges to so many followers; the next one goes on.
    DELETE FROM tenure.group_ends g
     WHERE g.id = ANY (noted)
       AND (coalesce(cardinality(touched), 0) < most
            OR NOT EXISTS (SELECT FROM unnest(ended, fates) AS e(job, fate)
                             JOIN tenure.job_edges d ON d.before = e.job
                            WHERE e.job = g.job_id
                              AND (d.state IS NULL OR e.fate = 'completed' AND d.state <> 'completed'
                                   OR e.fate = 'purged' AND d.state = 'failed')));
    IF cardinality(noted) = most OR cardinality(touched) = most THEN
        RETURN QUERY SELECT NULL::uuid, NULL::text, NULL::text, NULL::int, NULL::text, NULL::text;
    END IF;
END $$;
REVOKE ALL ON FUNCTION tenure.release_followers(int) FROM PUBLIC;

-- Looks for ends that no trigger has noted: of a job that an older program has redriven, and of a dead letter that was
-- purged, for which a follower is held. Looks at the open edges of `most` followers from one on; returns the last follower,
-- or NULL after the end.
CREATE FUNCTION tenure.mend_groups(after_follower uuid, most int) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    followers uuid[];
BEGIN
    SELECT array_agg(f.job_id ORDER BY f.job_id) INTO followers
      FROM (SELECT f.job_id FROM tenure.followers f
             WHERE f.job_id > after_follower
               AND EXISTS (SELECT FROM tenure.job_edges d
                            WHERE d.after = f.job_id AND (d.state IS NULL OR d.state <> 'completed'))
             ORDER BY f.job_id LIMIT most) f;
    INSERT INTO tenure.group_ends (job_id, ended_as)
    SELECT e.before, e.ended_as
      FROM (SELECT o.before, o.state,
                   coalesce((SELECT h.status FROM tenure.job_history h WHERE h.id = o.before),
                            CASE WHEN EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = o.before) THEN 'failed'
                                 WHEN o.state = 'failed' THEN 'purged'
                                 ELSE 'completed' END) AS ended_as
              FROM (SELECT DISTINCT d.before, d.state FROM tenure.job_edges d
                     WHERE d.after = ANY (followers) AND (d.state IS NULL OR d.state <> 'completed')) o
             WHERE (o.state IS NULL OR o.state = 'failed')
               AND NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = o.before)
               AND NOT EXISTS (SELECT FROM tenure.group_ends g WHERE g.job_id = o.before)) e
     WHERE e.state IS DISTINCT FROM e.ended_as;
    RETURN followers[most];
END $$;
REVOKE ALL ON FUNCTION tenure.mend_groups(uuid, int) FROM PUBLIC;

-- Removes what is known of groups whose followers are gone from all tables; returns how many followers.
CREATE FUNCTION tenure.sweep_groups(most bigint) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH gone AS MATERIALIZED (
        SELECT f.job_id
          FROM tenure.followers f
         WHERE NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = f.job_id)
           AND NOT EXISTS (SELECT FROM tenure.job_history h WHERE h.id = f.job_id)
           AND NOT EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = f.job_id)
         ORDER BY f.job_id
         LIMIT most
           FOR UPDATE SKIP LOCKED
    ), edges AS (
        DELETE FROM tenure.job_edges d USING gone WHERE d.after = gone.job_id
    ), swept AS (
        DELETE FROM tenure.followers f USING gone WHERE f.job_id = gone.job_id RETURNING 1
    )
    SELECT count(*) FROM swept
$$;
REVOKE ALL ON FUNCTION tenure.sweep_groups(bigint) FROM PUBLIC;

-- Notes that an attempt waits for an event. Returns what is known of it: 'waits', 'came' with its payload, 'late' (its
-- time is over, now or before), 'taken' (another effect of the job has the name), or 'lost' (the attempt has lost its job).
-- Sees what is committed when it begins; `signal` locks the same row.
CREATE FUNCTION tenure.await_event(job uuid, token bigint, claim uuid, name text, patience interval, OUT answer text,
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
REVOKE ALL ON FUNCTION tenure.await_event(uuid, bigint, uuid, text, interval) FROM PUBLIC;

-- Whether a job still waits for what it was suspended for: an event, or the jobs of a step. Its row is locked.
CREATE FUNCTION tenure.still_awaits(job uuid, name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM tenure.effects e WHERE e.job_id = job AND e.key = name AND e.step_kind = 'awaited')
        OR EXISTS (SELECT FROM tenure.job_edges d WHERE d.after = job AND d.state IS NULL AND d.step = name);
END $$;
REVOKE ALL ON FUNCTION tenure.still_awaits(uuid, text) FROM PUBLIC;

-- Tells a job of an event: `ctx.event` of that name returns the payload, whether it waits already or not.
-- SECURITY DEFINER: who approves a job need not be able to change it.
CREATE FUNCTION tenure.signal(job uuid, name text, payload jsonb DEFAULT 'null') RETURNS text
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
    SELECT * INTO live FROM tenure.jobs j WHERE j.id = job FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT FROM tenure.job_history h WHERE h.id = job)
                      OR EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = job)
                    THEN 'finished' ELSE 'not_found' END;
    END IF;
    SELECT * INTO known FROM tenure.effects e WHERE e.job_id = job AND e.key = name;
    IF NOT FOUND THEN
        INSERT INTO tenure.effects (job_id, key, fencing_token, result, step_kind, began_at)
        VALUES (job, name, live.fencing_token, coalesce(payload, 'null'), 'event', clock_timestamp())
            ON CONFLICT (job_id, key) DO NOTHING;
        RETURN CASE WHEN FOUND THEN 'signalled' ELSE 'taken' END;
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
REVOKE ALL ON FUNCTION tenure.signal(uuid, text, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION tenure.signal(uuid, text, jsonb) IS
'Tells a job of an event, in this transaction: the call ctx.event of that name returns the payload, now or later.
Returns signalled; known: an event of that name came before, and counts; late: the job has stopped waiting for it;
taken: a step or an effect of the job has that name; finished: the job has ended; not_found: there is no such job.
Errors: TN003 the name or the payload is not valid.';

-- As before, but for a job that is not due at any time: it has no place in its lane until it is released.
CREATE OR REPLACE FUNCTION tenure.hold_in_lane() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    due    CONSTANT timestamptz := NEW.scheduled_at;
    is_due CONSTANT boolean := due <= clock_timestamp();
    comes  CONSTANT boolean := due < '9999-01-01 00:00:00+00';
    ahead  bigint := CASE WHEN NOT comes THEN NULL
                          WHEN TG_ARGV[0] = 'ordered' THEN 0
                          WHEN is_due THEN (extract(epoch FROM due) * 1000000)::bigint END;
    woken  text;
BEGIN
    NEW.lane := coalesce(NEW.lane, '');
    NEW.priority := coalesce(NEW.priority, 0);
    INSERT INTO tenure.lane_jobs (job_id, queue, lane, priority, place, due_at)
    VALUES (NEW.id, NEW.queue, NEW.lane, CASE WHEN TG_ARGV[0] = 'ordered' THEN 0 ELSE NEW.priority END, ahead, due);
    -- One wake for all due jobs that a transaction adds to a lane.
    woken := NEW.queue || ' ' || NEW.lane;
    IF comes AND (NOT is_due OR current_setting('tenure.woken', true) IS DISTINCT FROM woken) THEN
        INSERT INTO tenure.lane_wakes (at, queue, lane, job_id)
        VALUES (due, NEW.queue, NEW.lane, CASE WHEN ahead IS NULL THEN NEW.id END);
        IF is_due THEN
            PERFORM set_config('tenure.woken', woken, true);
        END IF;
    END IF;
    NEW.dispatch := CASE WHEN NEW.published_at IS NULL THEN NEW.dispatch ELSE 0 END;
    NEW.scheduled_at := '9999-01-01 00:00:00+00';
    NEW.publish_at := '9999-01-01 00:00:00+00';
    NEW.published_at := NULL;
    RETURN NEW;
END $$;

-- As before, but for such jobs.
CREATE OR REPLACE FUNCTION tenure.place_anew(of text, ordered boolean) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    WITH moved AS (
        UPDATE tenure.lane_jobs l
           SET place = CASE WHEN place_anew.ordered THEN 0
                            WHEN l.due_at <= clock_timestamp() THEN (extract(epoch FROM l.due_at) * 1000000)::bigint END,
               priority = CASE WHEN place_anew.ordered THEN 0
                               ELSE coalesce((SELECT j.priority FROM tenure.jobs j WHERE j.id = l.job_id), 0) END
         WHERE l.queue = place_anew.of AND l.due_at < '9999-01-01 00:00:00+00'
        RETURNING l.job_id, l.queue, l.lane, l.place, l.due_at
    )
    INSERT INTO tenure.lane_wakes (at, queue, lane, job_id)
    SELECT due_at, queue, lane, job_id FROM moved WHERE place IS NULL
$$;
