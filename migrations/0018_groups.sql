-- Groups: jobs that wait for other jobs. Events: what a running job waits for from outside.
--
-- A *follower* is held, as a job of a lane is: it is queued, its `publish_at` never comes, and so no claim takes it. An
-- edge says for which job it waits. The transaction that ends a job of a group notes the end in
-- `group_ends` by a trigger; `tenure.release_followers` works the notes off, and its caller publishes what it releases.
-- So neither an old program nor a killed worker can lose an end, and plain jobs pay for one condition.

-- The group of a job: NULL for one that neither waits for a job nor is waited for.
ALTER TABLE tenure.jobs ADD COLUMN group_id uuid;

-- A row for each job that waits for others, before it starts or between two attempts. on_failure: what it does when a job
-- before it has failed or was cancelled. cut_at: that has cancelled it; the columns after it are what the job had.
CREATE TABLE tenure.followers (
    job_id       uuid        PRIMARY KEY,
    group_id     uuid        NOT NULL,
    on_failure   text        NOT NULL CHECK (on_failure IN ('cancel', 'run', 'hold')),
    cut_at       timestamptz,
    lane         text,
    priority     smallint,
    not_after    timestamptz,
    expires_as   text
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
CREATE INDEX job_edges_of_group ON tenure.job_edges (group_id, n);

-- Jobs of groups that have ended, until their followers know.
CREATE TABLE tenure.group_ends (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id       uuid        NOT NULL,
    ended_as     text        NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

-- Notes jobs that follow others, and for which they wait, inside the transaction that creates them.
-- SECURITY DEFINER: a producer writes no edge of a job that is there already, unless it created that one as a part of this
-- group: no other producer can know the group's id.
CREATE FUNCTION tenure.check_new_jobs(jobs uuid[], of_group uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    other uuid;
BEGIN
    SELECT u.id INTO other
      FROM unnest(jobs) AS u(id)
     WHERE EXISTS (SELECT FROM tenure.jobs j WHERE j.id = u.id AND j.group_id IS DISTINCT FROM of_group)
        OR EXISTS (SELECT FROM tenure.followers f WHERE f.job_id = u.id AND f.group_id <> of_group)
        OR EXISTS (SELECT FROM tenure.job_history h WHERE h.id = u.id)
        OR EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = u.id)
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'job % is no new job of this group', other USING ERRCODE = 'TN003';
    END IF;
END $$;
REVOKE ALL ON FUNCTION tenure.check_new_jobs(uuid[], uuid) FROM PUBLIC;
CREATE FUNCTION tenure.link_jobs(befores uuid[], afters uuid[], of_group uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM tenure.check_new_jobs(ARRAY(SELECT DISTINCT u.id FROM unnest(afters) AS u(id)), of_group);
    INSERT INTO tenure.job_edges (before, after, group_id)
    SELECT u.before, u.after, of_group
      FROM unnest(befores, afters) WITH ORDINALITY AS u(before, after, n)
     WHERE u.before <> u.after
     ORDER BY u.n
        ON CONFLICT (before, after) DO NOTHING;
END $$;
REVOKE ALL ON FUNCTION tenure.link_jobs(uuid[], uuid[], uuid) FROM PUBLIC;
CREATE FUNCTION tenure.add_followers(ids uuid[], on_failure text[], of_group uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM tenure.check_new_jobs(ids, of_group);
    INSERT INTO tenure.followers (job_id, group_id, on_failure)
    SELECT u.job_id, of_group, u.does FROM unnest(ids, on_failure) AS u(job_id, does)
        ON CONFLICT (job_id) DO NOTHING;
END $$;
REVOKE ALL ON FUNCTION tenure.add_followers(uuid[], text[], uuid) FROM PUBLIC;

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

-- Makes held jobs due, in their lanes if their queue has any. The caller has locked their rows.
CREATE FUNCTION tenure.wake_jobs(ids uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    never  CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    -- They were held before their queue had lanes.
    WITH late AS (
        INSERT INTO tenure.lane_jobs (job_id, queue, lane, priority, due_at)
        SELECT j.id, j.queue, coalesce(j.lane, ''), CASE WHEN s.ordered THEN 0 ELSE coalesce(j.priority, 0) END, never
          FROM tenure.jobs j
          JOIN tenure.lane_settings s ON s.queue = j.queue AND s.removed_at IS NULL
         WHERE j.id = ANY (ids) AND j.status = 'queued' AND j.publish_at = never
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
--   most: how many ends one call takes
--
-- Returns the released jobs, for the caller to publish: if it dies, the relay finds their messages missing. A last row
-- without an id: there is more to do.
-- Each statement of a plpgsql function sees what is committed when it begins. So of two calls that settle the last edges of
-- one follower, the second waits for the follower's row, and then sees that none is left. A job whose row another
-- transaction has locked is left for later, with the ends that it waits for. Locks are taken in this order: ends,
-- followers, jobs, edges, places in lanes; rows of one table in order of id.
CREATE FUNCTION tenure.release_followers(most int)
RETURNS TABLE (id uuid, queue text, kind text, dispatch int, clear_reason text, trace_context text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET plan_cache_mode = force_generic_plan SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    never  CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    edges_at_once CONSTANT int := 5000;
    moment timestamptz;
    noted  bigint[];
    ended  uuid[];
    fates  text[];
    befores uuid[];
    afters uuid[];
    touched uuid[];
    free   uuid[];
    settled jsonb;
    ready  uuid[];
    doomed uuid[];
    woken  uuid[];
    of     record;
BEGIN
    -- 1. The ends. Of two ends of one job a completion counts, or else the later one; a job that is live again has not ended.
    SELECT array_agg(e.id) INTO noted
      FROM (SELECT id FROM tenure.group_ends ORDER BY id LIMIT most FOR UPDATE SKIP LOCKED) e;
    IF noted IS NULL THEN
        RETURN;
    END IF;
    -- A redrive holds its dead letter until it commits: the next statement sees the job live, or else the redrive will see
    -- what this call writes.
    PERFORM FROM tenure.dead_letter_jobs d
      WHERE d.id = ANY (ARRAY(SELECT g.job_id FROM tenure.group_ends g WHERE g.id = ANY (noted) AND g.ended_as = 'failed'))
      ORDER BY d.id FOR SHARE;
    SELECT array_agg(e.job_id), array_agg(e.ended_as) INTO ended, fates
      FROM (SELECT DISTINCT ON (g.job_id) g.job_id, g.ended_as
              FROM tenure.group_ends g WHERE g.id = ANY (noted)
             ORDER BY g.job_id, (g.ended_as = 'completed') DESC, g.id DESC) e
     WHERE e.ended_as = 'completed' OR NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = e.job_id);

    -- 2. Some of their edges that are to be settled: a fate replaces none that is better, as calls may come in another
    -- order than the ends did.
    SELECT array_agg(d.before), array_agg(d.after) INTO befores, afters
      FROM (SELECT d.before, d.after
              FROM unnest(ended, fates) AS e(job, fate)
             CROSS JOIN LATERAL (
                   SELECT d.before, d.after FROM tenure.job_edges d
                    WHERE d.before = e.job
                      AND (d.state IS NULL OR e.fate = 'completed' AND d.state <> 'completed'
                           OR e.fate IN ('cancelled', 'purged') AND d.state = 'failed')
                    LIMIT edges_at_once) d
             LIMIT edges_at_once) d;
    SELECT array_agg(f.job_id) INTO touched
      FROM (SELECT f.job_id FROM tenure.followers f
             WHERE f.job_id = ANY (afters) ORDER BY f.job_id FOR NO KEY UPDATE) f;
    SELECT array_agg(j.id) INTO free
      FROM (SELECT j.id FROM tenure.jobs j WHERE j.id = ANY (touched) ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED) j;
    -- A job that is about to be held either is held by now, or is passed over, or will see the edges.
    free := free || ARRAY(SELECT t FROM unnest(touched) AS t
                           WHERE NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = t));
    WITH moved AS (
        UPDATE tenure.job_edges d
           SET state = e.fate, ended_at = clock_timestamp(),
               output = CASE WHEN e.fate = 'completed'
                             THEN coalesce((SELECT h.output FROM tenure.job_history h WHERE h.id = d.before), d.output) END
          FROM unnest(befores, afters) AS p(before, after)
          JOIN unnest(ended, fates) AS e(job, fate) ON e.job = p.before
         WHERE d.before = p.before AND d.after = p.after AND p.after = ANY (free)
           AND (d.state IS NULL OR e.fate = 'completed' AND d.state <> 'completed'
                OR e.fate IN ('cancelled', 'purged') AND d.state = 'failed')
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
                             WHERE d.after = f.job_id AND d.state <> 'completed' AND d.state IS NOT NULL
                               AND d.step IS NULL
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

    -- 4. A follower that was cancelled by a job's failure comes back once that job has completed after all. It has a
    -- clear_reason, as a redriven job has: it stays in its cell. One that cannot come back keeps back no other.
    FOR of IN
        SELECT f.* FROM tenure.followers f WHERE f.job_id = ANY (ready) AND f.cut_at IS NOT NULL ORDER BY f.job_id
    LOOP
        BEGIN
            WITH back AS (
                DELETE FROM tenure.job_history h WHERE h.id = of.job_id AND h.status = 'cancelled' RETURNING h.*
            ), expiring AS (
                INSERT INTO tenure.job_expiries (at, job_id)
                SELECT of.not_after, b.id FROM back b WHERE of.not_after IS NOT NULL
                    ON CONFLICT DO NOTHING
            )
            INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, fencing_token, created_at, scheduled_at,
                   trace_context, dispatch, publish_at, clear_reason, lane, priority, not_after, expires_as, group_id)
            SELECT b.id, b.queue, b.kind, b.payload, b.max_attempts, b.fencing_token, b.created_at, clock_timestamp(),
                   b.trace_context, 0, clock_timestamp(), 'redriven', of.lane, of.priority, of.not_after, of.expires_as,
                   of.group_id
              FROM back b;
            UPDATE tenure.followers f SET cut_at = NULL WHERE f.job_id = of.job_id;
            -- What follows it waits for it again.
            UPDATE tenure.job_edges d SET state = NULL, ended_at = NULL
             WHERE d.before = of.job_id AND d.state = 'cancelled';
        EXCEPTION
        WHEN lock_not_available OR deadlock_detected OR query_canceled OR serialization_failure THEN
            RAISE;
        WHEN OTHERS THEN
            -- `tenure.mend_groups` tries it again.
            RAISE WARNING 'job % cannot come back: %', of.job_id, SQLERRM;
        END;
    END LOOP;

    -- 5. The others.
    moment := clock_timestamp();
    FOR of IN
        SELECT j.id, j.lane, j.priority, j.not_after, j.expires_as, d.before, d.state
          FROM tenure.jobs j
         CROSS JOIN LATERAL (SELECT d.before, d.state FROM tenure.job_edges d
                              WHERE d.after = j.id AND d.state <> 'completed' AND d.state IS NOT NULL
                                AND d.step IS NULL LIMIT 1) d
         WHERE j.id = ANY (doomed) AND j.status = 'queued' AND j.publish_at = never AND j.fencing_token = 0
         ORDER BY j.id
    LOOP
        UPDATE tenure.followers f
           SET cut_at = moment, lane = of.lane, priority = of.priority, not_after = of.not_after,
               expires_as = of.expires_as
         WHERE f.job_id = of.id;
        UPDATE tenure.jobs j
           SET last_error = format('job %s, which it was to follow, %s', of.before,
                                   CASE of.state WHEN 'cancelled' THEN 'was cancelled' WHEN 'purged' THEN 'was purged'
                                        ELSE 'has failed' END)
         WHERE j.id = of.id;
        PERFORM tenure.cancel(of.id);
    END LOOP;
    PERFORM tenure.wake_jobs(woken || ARRAY(
        SELECT j.id FROM tenure.jobs j
         WHERE j.id = ANY (ready) AND j.status = 'queued' AND j.publish_at = never
           AND (EXISTS (SELECT FROM tenure.lane_jobs l WHERE l.job_id = j.id)
                OR EXISTS (SELECT FROM tenure.lane_settings s WHERE s.queue = j.queue AND s.removed_at IS NULL))));
    RETURN QUERY
    UPDATE tenure.jobs j
       SET dispatch = j.dispatch + 1, scheduled_at = moment, publish_at = NULL, published_at = clock_timestamp()
     WHERE j.id = ANY (ready) AND j.status = 'queued' AND j.publish_at = never
       AND NOT EXISTS (SELECT FROM tenure.lane_jobs l WHERE l.job_id = j.id)
    RETURNING j.id, j.queue, j.kind, j.dispatch, j.clear_reason, j.trace_context;

    -- 6. Ends that have edges left: the next call goes on. Those that wait for a lock make way for others.
    WITH open AS MATERIALIZED (
        SELECT g.id, g.job_id, g.ended_as,
               EXISTS (SELECT FROM unnest(ended, fates) AS e(job, fate)
                         JOIN tenure.job_edges d ON d.before = e.job
                        WHERE e.job = g.job_id
                          AND (d.state IS NULL OR e.fate = 'completed' AND d.state <> 'completed'
                               OR e.fate IN ('cancelled', 'purged') AND d.state = 'failed')
                          AND EXISTS (SELECT FROM tenure.followers f WHERE f.job_id = d.after)) AS is_open
          FROM tenure.group_ends g
         WHERE g.id = ANY (noted)
    ), gone AS (
        DELETE FROM tenure.group_ends g USING open o
         WHERE g.id = o.id AND (NOT o.is_open OR cardinality(free) IS DISTINCT FROM cardinality(touched))
    )
    INSERT INTO tenure.group_ends (job_id, ended_as)
    SELECT o.job_id, o.ended_as FROM open o
     WHERE o.is_open AND cardinality(free) IS DISTINCT FROM cardinality(touched)
     ORDER BY o.id;
    IF (cardinality(noted) = most OR cardinality(befores) = edges_at_once OR doomed IS NOT NULL) AND settled IS NOT NULL THEN
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
               AND (f.cut_at IS NOT NULL
                    OR EXISTS (SELECT FROM tenure.job_edges d
                                WHERE d.after = f.job_id AND (d.state IS NULL OR d.state <> 'completed')))
             ORDER BY f.job_id LIMIT most) f;
    -- One that could not come back when the last job before it had completed: that end is told once more.
    WITH again AS (
        UPDATE tenure.job_edges d SET state = NULL
         WHERE (d.after, d.n) IN (
               SELECT f.job_id, (SELECT max(e.n) FROM tenure.job_edges e WHERE e.after = f.job_id AND e.step IS NULL)
                 FROM tenure.followers f
                WHERE f.job_id = ANY (followers) AND f.cut_at IS NOT NULL
                  AND EXISTS (SELECT FROM tenure.job_history h WHERE h.id = f.job_id AND h.status = 'cancelled')
                  AND NOT EXISTS (SELECT FROM tenure.job_edges e
                                   WHERE e.after = f.job_id AND e.step IS NULL
                                     AND (e.state IS NULL OR e.state <> 'completed')))
        RETURNING d.before
    )
    INSERT INTO tenure.group_ends (job_id, ended_as) SELECT before, 'completed' FROM again;
    UPDATE tenure.job_edges d SET state = NULL, ended_at = NULL
     WHERE d.after = ANY (followers) AND d.state = 'failed'
       AND EXISTS (SELECT FROM tenure.jobs j WHERE j.id = d.before);
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

-- The edges of jobs that are redriven are open again: what follows them waits for their next end. No call of
-- `release_followers` is under way then that has looked at any of them.
-- SECURITY DEFINER: who may redrive a job need not be able to write edges.
CREATE FUNCTION tenure.reopen_edges(jobs uuid[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    opened bigint;
BEGIN
    PERFORM FROM tenure.followers f
      WHERE f.job_id = ANY (jobs || ARRAY(SELECT d.after FROM tenure.job_edges d WHERE d.before = ANY (jobs)))
      ORDER BY f.job_id FOR NO KEY UPDATE;
    UPDATE tenure.job_edges d SET state = NULL, ended_at = NULL WHERE d.before = ANY (jobs) AND d.state = 'failed';
    GET DIAGNOSTICS opened = ROW_COUNT;
    RETURN opened;
END $$;
REVOKE ALL ON FUNCTION tenure.reopen_edges(uuid[]) FROM PUBLIC;

-- When a redriven job is due: never, if it had not started and waits for jobs that may still come. Called after
-- `reopen_edges`, whose locks it relies on.
CREATE FUNCTION tenure.redriven_at(job uuid, token bigint) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF token = 0 AND EXISTS (
           SELECT FROM tenure.job_edges d JOIN tenure.followers f ON f.job_id = d.after
            WHERE d.after = job AND d.step IS NULL
              AND (d.state IS NULL OR d.state = 'failed' AND f.on_failure <> 'run')) THEN
        RETURN '9999-01-01 00:00:00+00';
    END IF;
    RETURN clock_timestamp();
END $$;
REVOKE ALL ON FUNCTION tenure.redriven_at(uuid, bigint) FROM PUBLIC;

-- Removes what is known of groups whose followers are gone from all tables. Looks at `most` followers from one on; returns
-- the last, or NULL after the end.
CREATE FUNCTION tenure.sweep_groups(after_follower uuid, most int) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    followers uuid[];
    gone      uuid[];
BEGIN
    SELECT array_agg(f.job_id ORDER BY f.job_id) INTO followers
      FROM (SELECT f.job_id FROM tenure.followers f WHERE f.job_id > after_follower ORDER BY f.job_id LIMIT most) f;
    SELECT array_agg(f.job_id) INTO gone
      FROM unnest(followers) AS f(job_id)
     WHERE NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = f.job_id)
       AND NOT EXISTS (SELECT FROM tenure.job_history h WHERE h.id = f.job_id)
       AND NOT EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = f.job_id);
    DELETE FROM tenure.followers f WHERE f.job_id = ANY (gone);
    DELETE FROM tenure.job_edges d WHERE d.after = ANY (gone);
    RETURN followers[most];
END $$;
REVOKE ALL ON FUNCTION tenure.sweep_groups(uuid, int) FROM PUBLIC;

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

-- For how many seconds a job is suspended that waits for an event or for the jobs of a step. Its row is locked. None if that
-- has come, or anything else that it may wait for since the attempt began: a handler may wait for several. No longer than
-- until the end of a sleep or of a wait that is recorded.
CREATE FUNCTION tenure.suspended_for(job uuid, name text, longest float8, since timestamptz) RETURNS float8
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM tenure.effects e WHERE e.job_id = job AND e.step_kind = 'event' AND e.created_at >= since)
       OR EXISTS (SELECT FROM tenure.job_edges d
                   WHERE d.after = job AND d.ended_at >= since AND d.step IS NOT NULL
                     AND NOT EXISTS (SELECT FROM tenure.job_edges o
                                      WHERE o.after = job AND o.state IS NULL AND o.step = d.step))
       OR NOT EXISTS (SELECT FROM tenure.effects e WHERE e.job_id = job AND e.key = name AND e.step_kind = 'awaited')
          AND NOT EXISTS (SELECT FROM tenure.job_edges d WHERE d.after = job AND d.state IS NULL AND d.step = name) THEN
        RETURN 0;
    END IF;
    RETURN greatest(0, least(longest, (SELECT extract(epoch FROM min(e.wakes_at) - clock_timestamp())
                                         FROM tenure.effects e
                                        WHERE e.job_id = job AND e.step_kind IN ('sleep', 'awaited')
                                          AND e.wakes_at >= since)));
END $$;
REVOKE ALL ON FUNCTION tenure.suspended_for(uuid, text, float8, timestamptz) FROM PUBLIC;

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
        VALUES (job, name, live.fencing_token, coalesce(payload, 'null'), 'event', clock_timestamp())
            ON CONFLICT (job_id, key) DO NOTHING;
        IF NOT FOUND THEN
            RETURN 'taken';
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

-- As before, but what has become of the job is written before its row goes: the trigger may fire at once.
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
            RETURN 'cancelled';
        ELSIF EXISTS (SELECT FROM tenure.job_history h WHERE h.id = cancel.job)
           OR EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = cancel.job) THEN
            RETURN 'finished';
        END IF;
        EXIT WHEN NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = cancel.job);
    END LOOP;
    RETURN 'not_found';
END $$;

-- As before, but for a job that is held by no lane.
CREATE OR REPLACE FUNCTION tenure.take_key(key_while text, of_scope text, of_key text, new_id uuid, new_payload jsonb,
                                due timestamptz, longest interval) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    holder uuid;
    old    tenure.jobs;
    until  timestamptz;
    waited boolean;
BEGIN
    IF of_scope NOT LIKE '%/queued' AND of_scope NOT LIKE '%/live' THEN
        RAISE EXCEPTION '% is no scope of keys that end with their jobs', to_json(of_scope) USING ERRCODE = 'TN003';
    ELSIF EXISTS (SELECT FROM tenure.jobs j WHERE j.id = new_id) THEN
        RAISE EXCEPTION 'job % exists already', new_id USING ERRCODE = 'unique_violation';
    END IF;
    FOR try IN 1..3 LOOP
        INSERT INTO tenure.job_keys (scope, key, job_id, lasting) VALUES (of_scope, of_key, new_id, true)
            ON CONFLICT (scope, key) DO NOTHING;
        IF FOUND THEN
            RETURN new_id;
        END IF;
        SELECT CASE WHEN k.lasting THEN k.job_id END INTO holder
          FROM tenure.job_keys k WHERE k.scope = of_scope AND k.key = of_key FOR UPDATE;
        -- Retention has removed it in between.
        CONTINUE WHEN NOT FOUND;
        IF key_while = 'live' THEN
            IF EXISTS (SELECT FROM tenure.jobs j WHERE j.id = holder) THEN
                RETURN holder;
            END IF;
        ELSE
            SELECT * INTO old FROM tenure.jobs j WHERE j.id = holder AND j.status = 'queued' FOR NO KEY UPDATE;
            IF FOUND THEN
                IF key_while = 'replace' THEN
                    waited := old.fencing_token > 0
                        AND (EXISTS (SELECT FROM tenure.effects e WHERE e.job_id = holder AND e.step_kind = 'awaited')
                             OR EXISTS (SELECT FROM tenure.job_edges d
                                         WHERE d.after = holder AND d.state IS NULL AND d.step IS NOT NULL));
                    -- What earlier attempts did, they did for the old payload.
                    DELETE FROM tenure.effects e WHERE e.job_id = holder AND old.fencing_token > 0;
                    DELETE FROM tenure.job_edges d
                     WHERE d.after = holder AND d.step IS NOT NULL AND old.fencing_token > 0;
                    IF waited OR old.publish_at = '9999-01-01 00:00:00+00'
                       AND NOT EXISTS (SELECT FROM tenure.lane_jobs l
                                        WHERE l.job_id = holder AND l.due_at < '9999-01-01 00:00:00+00') THEN
                        -- No lane holds it: it follows other jobs, or its attempt waits, and begins anew.
                        UPDATE tenure.jobs j SET payload = new_payload, checkpoint = NULL WHERE j.id = holder;
                        IF waited THEN
                            PERFORM tenure.wake_jobs(ARRAY[holder]);
                        END IF;
                        RETURN holder;
                    END IF;
                    until := greatest(least(due, old.created_at + coalesce(longest, due - old.created_at)),
                                      -- A retry keeps its pause.
                                      CASE WHEN old.fencing_token > 0 AND old.scheduled_at < '9999-01-01 00:00:00+00'
                                           THEN old.scheduled_at END);
                    IF old.publish_at = '9999-01-01 00:00:00+00' THEN
                        UPDATE tenure.lane_jobs l
                           SET due_at = until,
                               place = CASE WHEN l.place = 0 THEN 0
                                            WHEN until <= clock_timestamp() THEN (extract(epoch FROM until) * 1000000)::bigint END
                         WHERE l.job_id = holder;
                        INSERT INTO tenure.lane_wakes (at, queue, lane, job_id) VALUES (until, old.queue, old.lane, holder);
                        UPDATE tenure.jobs j SET payload = new_payload, checkpoint = NULL WHERE j.id = holder;
                    ELSIF until <= clock_timestamp() AND old.published_at IS NOT NULL
                       OR EXISTS (SELECT FROM tenure.lane_slots s
                                   WHERE s.queue = old.queue AND s.lane = old.lane AND s.job_id = holder) THEN
                        -- Its message is on its way, or it keeps its lane's slot.
                        UPDATE tenure.jobs j SET payload = new_payload, checkpoint = NULL WHERE j.id = holder;
                    ELSE
                        UPDATE tenure.jobs j
                           SET payload = new_payload, checkpoint = NULL, scheduled_at = until, publish_at = until,
                               published_at = NULL
                         WHERE j.id = holder;
                    END IF;
                END IF;
                RETURN holder;
            END IF;
        END IF;
        UPDATE tenure.job_keys k
           SET job_id = new_id, created_at = clock_timestamp(), ended_at = NULL, lasting = true
         WHERE k.scope = of_scope AND k.key = of_key;
        RETURN new_id;
    END LOOP;
    RETURN NULL;
END $$;
