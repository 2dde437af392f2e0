-- Groups, with less work for each end.
--
-- No index knows how an edge has ended, so that the end changes the row in its place (heap-only), and no index.
DROP INDEX tenure.job_edges_open;
ALTER TABLE tenure.job_edges SET (fillfactor = 45);
-- The edge at which the next look for an open one begins. It saves time and decides nothing: an edge before it may be open.
ALTER TABLE tenure.followers ADD COLUMN open_n bigint NOT NULL DEFAULT 0;

-- As before, but the statements that do nothing but complete jobs say so (`tenure.completes`, until their transaction ends):
-- a look into the history, with its partitions, takes ten times as long as the note.
CREATE OR REPLACE FUNCTION tenure.note_group_end() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A queued job does not complete, and one that is to be cancelled may not.
    IF current_setting('tenure.completes', true) = 'on' AND OLD.status = 'processing' AND OLD.cancel_requested_at IS NULL THEN
        INSERT INTO tenure.group_ends (job_id, ended_as) VALUES (OLD.id, 'completed');
        RETURN NULL;
    END IF;
    INSERT INTO tenure.group_ends (job_id, ended_as)
    SELECT OLD.id,
           coalesce((SELECT h.status FROM tenure.job_history h WHERE h.id = OLD.id),
                    CASE WHEN EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = OLD.id) THEN 'failed'
                         -- Its kind keeps no history.
                         ELSE 'completed' END);
    RETURN NULL;
END $$;

-- As before, but a follower with many edges is not looked at from its first one each time, and the ends that are settled go
-- at once.
CREATE OR REPLACE FUNCTION tenure.release_followers(most int)
RETURNS TABLE (id uuid, queue text, kind text, dispatch int, clear_reason text, trace_context text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '2s' AS $$
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
    fates_of text[];
    leaves boolean[];
    leave_of boolean[];
    touched uuid[];
    free   uuid[];
    joined uuid[];
    hurt   uuid[];
    hopeless uuid[];
    steps  jsonb;
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
    SELECT array_agg(e.job_id), array_agg(e.ended_as),
           array_agg(EXISTS (SELECT FROM tenure.job_history h WHERE h.id = e.job_id AND h.output IS NOT NULL))
      INTO ended, fates, leaves
      FROM (SELECT DISTINCT ON (g.job_id) g.job_id, g.ended_as
              FROM tenure.group_ends g WHERE g.id = ANY (noted)
             ORDER BY g.job_id, (g.ended_as = 'completed') DESC, g.id DESC) e
     WHERE e.ended_as = 'completed' OR NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = e.job_id);

    -- 2. Some of their edges that are to be settled: a fate replaces none that is better, as calls may come in another
    -- order than the ends did.
    SELECT array_agg(d.before), array_agg(d.after), array_agg(d.fate), array_agg(d.leaves)
      INTO befores, afters, fates_of, leave_of
      FROM (SELECT d.before, d.after, e.fate, e.leaves
              FROM unnest(ended, fates, leaves) AS e(job, fate, leaves)
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
           SET state = p.fate, ended_at = clock_timestamp(),
               output = CASE WHEN p.fate <> 'completed' THEN NULL
                             WHEN p.leaves
                             THEN coalesce((SELECT h.output FROM tenure.job_history h WHERE h.id = p.before), d.output)
                             ELSE d.output END
          FROM unnest(befores, afters, fates_of, leave_of) AS p(before, after, fate, leaves)
         WHERE d.before = p.before AND d.after = p.after
           -- Not a join, which would be a loop in a loop.
           AND (p.after IN (SELECT unnest(free))) IS TRUE
           AND (d.state IS NULL OR p.fate = 'completed' AND d.state <> 'completed'
                OR p.fate IN ('cancelled', 'purged') AND d.state = 'failed')
        RETURNING d.after, d.step, d.state
    )
    SELECT array_agg(DISTINCT after) FILTER (WHERE step IS NULL),
           array_agg(DISTINCT after) FILTER (WHERE step IS NULL AND state <> 'completed'),
           array_agg(DISTINCT after) FILTER (WHERE step IS NULL AND state IN ('cancelled', 'purged')),
           jsonb_agg(DISTINCT jsonb_build_array(after, step)) FILTER (WHERE step IS NOT NULL)
      INTO joined, hurt, hopeless, steps
      FROM moved;

    -- 3. What becomes of each. A failure decides at once. One that still waits is only remembered: the next look begins at the
    -- edge for which it waits. Whether none is left is decided by a look at all of them.
    WITH seen AS MATERIALIZED (
        SELECT f.job_id, f.on_failure, f.open_n, c.is_cut,
               CASE WHEN NOT c.is_cut
                    THEN coalesce((SELECT d.n FROM tenure.job_edges d
                                    WHERE d.after = f.job_id AND d.n >= f.open_n AND d.state IS NULL AND d.step IS NULL
                                    ORDER BY d.n LIMIT 1),
                                  -- One before it may be open again: its job was redriven.
                                  (SELECT d.n FROM tenure.job_edges d
                                    WHERE d.after = f.job_id AND d.state IS NULL AND d.step IS NULL
                                    ORDER BY d.n LIMIT 1)) END AS next_n
          FROM tenure.followers f
         CROSS JOIN LATERAL (
               SELECT f.cut_at IS NULL AND CASE f.on_failure WHEN 'cancel' THEN (f.job_id IN (SELECT unnest(hurt))) IS TRUE
                                                             -- What cannot be redriven will not come.
                                                             WHEN 'hold' THEN (f.job_id IN (SELECT unnest(hopeless))) IS TRUE
                                                             ELSE false END AS is_cut
                OFFSET 0) c
         WHERE f.job_id = ANY (joined)
    ), remembered AS (
        UPDATE tenure.followers f SET open_n = s.next_n
          FROM seen s WHERE f.job_id = s.job_id AND s.next_n <> s.open_n
    )
    SELECT array_agg(v.job_id) FILTER (WHERE NOT v.is_cut AND NOT v.waits AND (v.on_failure = 'run' OR NOT v.lacks)),
           array_agg(v.job_id) FILTER (WHERE v.is_cut OR v.on_failure = 'cancel' AND v.lacks
                                          OR v.on_failure = 'hold' AND v.is_beyond_redrive)
      INTO ready, doomed
      FROM (SELECT s.job_id, s.on_failure, s.is_cut, e.waits, e.lacks, e.is_beyond_redrive
              FROM seen s
             CROSS JOIN LATERAL (
                   SELECT coalesce(bool_or(d.state IS NULL), false) AS waits,
                          coalesce(bool_or(d.state <> 'completed'), false) AS lacks,
                          coalesce(bool_or(d.state IN ('cancelled', 'purged')), false) AS is_beyond_redrive
                     FROM tenure.job_edges d
                    WHERE NOT s.is_cut AND d.after = s.job_id AND d.step IS NULL) e
             WHERE s.next_n IS NULL) v;
    -- The same for jobs of steps. A call of another name may have open ones before these.
    WITH seen AS MATERIALIZED (
        SELECT f.job_id, f.open_n,
               (SELECT d.n FROM tenure.job_edges d
                 WHERE d.after = f.job_id AND d.n >= f.open_n AND d.state IS NULL AND d.step IS NOT NULL
                 ORDER BY d.n LIMIT 1) AS next_n
          FROM tenure.followers f
         WHERE f.job_id = ANY (ARRAY(SELECT (w ->> 0)::uuid FROM jsonb_array_elements(steps) AS w))
    ), remembered AS (
        UPDATE tenure.followers f SET open_n = s.next_n
          FROM seen s WHERE f.job_id = s.job_id AND s.next_n > s.open_n
    )
    SELECT array_agg(DISTINCT w.job) INTO woken
      FROM (SELECT (w ->> 0)::uuid AS job, w ->> 1 AS step FROM jsonb_array_elements(steps) AS w) w
      LEFT JOIN seen s ON s.job_id = w.job
     WHERE CASE WHEN EXISTS (SELECT FROM tenure.job_edges d
                              WHERE d.after = w.job AND d.n >= s.next_n AND d.state IS NULL AND d.step = w.step)
                THEN false
                ELSE NOT EXISTS (SELECT FROM tenure.job_edges d
                                  WHERE d.after = w.job AND d.state IS NULL AND d.step = w.step) END;

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
    IF coalesce(cardinality(befores), 0) < edges_at_once AND cardinality(free) IS NOT DISTINCT FROM cardinality(touched) THEN
        DELETE FROM tenure.group_ends g WHERE g.id = ANY (noted);
    ELSE
        ended := ARRAY(
            SELECT e.job
              FROM unnest(ended, fates) AS e(job, fate)
             WHERE EXISTS (SELECT FROM tenure.job_edges d
                            WHERE d.before = e.job
                              AND (d.state IS NULL OR e.fate = 'completed' AND d.state <> 'completed'
                                   OR e.fate IN ('cancelled', 'purged') AND d.state = 'failed')
                              AND EXISTS (SELECT FROM tenure.followers f WHERE f.job_id = d.after)));
        WITH gone AS (
            DELETE FROM tenure.group_ends g
             WHERE g.id = ANY (noted)
               AND (g.job_id <> ALL (ended) OR cardinality(free) IS DISTINCT FROM cardinality(touched))
            RETURNING g.id, g.job_id, g.ended_as
        )
        INSERT INTO tenure.group_ends (job_id, ended_as)
        SELECT g.job_id, g.ended_as FROM gone g WHERE g.job_id = ANY (ended) ORDER BY g.id;
    END IF;
    IF (cardinality(noted) = most OR cardinality(befores) = edges_at_once OR doomed IS NOT NULL)
       AND (joined IS NOT NULL OR steps IS NOT NULL) THEN
        RETURN QUERY SELECT NULL::uuid, NULL::text, NULL::text, NULL::int, NULL::text, NULL::text;
    END IF;
END $$;

-- As before, but one call looks at `most` followers, and at the edges of those alone that live, or were cancelled.
CREATE OR REPLACE FUNCTION tenure.mend_groups(after_follower uuid, most int) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    followers uuid[];
    last      uuid;
BEGIN
    SELECT (array_agg(f.job_id ORDER BY f.job_id))[most],
           array_agg(f.job_id) FILTER (WHERE f.cut_at IS NOT NULL
                                          OR EXISTS (SELECT FROM tenure.jobs j WHERE j.id = f.job_id))
      INTO last, followers
      FROM (SELECT f.job_id, f.cut_at FROM tenure.followers f
             WHERE f.job_id > after_follower ORDER BY f.job_id LIMIT most) f;
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
    RETURN last;
END $$;

-- As before, but in one pass over the edges, and also for a job that sleeps: its name is empty.
CREATE OR REPLACE FUNCTION tenure.suspended_for(job uuid, name text, longest float8, since timestamptz) RETURNS float8
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM tenure.effects e WHERE e.job_id = job AND e.step_kind = 'event' AND e.created_at >= since)
       OR EXISTS (SELECT FROM tenure.job_edges d
                   WHERE d.after = job AND d.step IS NOT NULL
                   GROUP BY d.step
                  HAVING bool_and(d.state IS NOT NULL) AND max(d.ended_at) >= since)
       OR name <> ''
          AND NOT EXISTS (SELECT FROM tenure.effects e WHERE e.job_id = job AND e.key = name AND e.step_kind = 'awaited')
          AND NOT EXISTS (SELECT FROM tenure.job_edges d WHERE d.after = job AND d.state IS NULL AND d.step = name) THEN
        RETURN 0;
    END IF;
    RETURN greatest(0, least(longest, (SELECT extract(epoch FROM min(e.wakes_at) - clock_timestamp())
                                         FROM tenure.effects e
                                        WHERE e.job_id = job AND e.step_kind IN ('sleep', 'awaited')
                                          AND e.wakes_at >= since)));
END $$;
