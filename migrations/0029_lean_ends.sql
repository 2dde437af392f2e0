-- Groups, with less processor time for each end: about a quarter less in `tenure.settle_edges` and in
-- `tenure.release_followers`. What they do stays: migrations 26 and 27 explain it.

-- As before, with less work for an edge. A job has many followers if an edge and the tenth after it are both its own. Outputs
-- are looked up only if there are any, as the server copies `jobs` for each call of width_bucket.
CREATE OR REPLACE FUNCTION tenure.settle_edges(jobs uuid[], outputs jsonb[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
    SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    edges_at_once CONSTANT int := 10;
    befores uuid[];
    places tid[];
    more   uuid[];
    wide   uuid[];
    done   bigint;
BEGIN
    -- Found once, and then changed by their places: a second look by their keys takes as long as the change. An edge that
    -- another transaction has changed meanwhile has another place: the next round finds it.
    LOOP
        SELECT array_agg(u.id), array_agg(d.place) INTO befores, places
          FROM unnest(jobs) AS u(id)
         CROSS JOIN LATERAL (
               SELECT d.ctid AS place FROM tenure.job_edges d
                WHERE d.before = u.id AND (d.state IS NULL OR d.state <> 'completed')
                LIMIT edges_at_once + 1) d
         WHERE (u.id IN (SELECT unnest(wide))) IS NOT TRUE;
        EXIT WHEN places IS NULL;
        -- The edges of one job stand together, as the jobs are gone through one by one.
        more := ARRAY(SELECT DISTINCT befores[i] FROM generate_series(edges_at_once + 1, cardinality(befores)) AS i
                       WHERE befores[i] = befores[i - edges_at_once]);
        IF cardinality(more) > 0 THEN
            INSERT INTO tenure.group_ends (job_id, ended_as) SELECT m.id, 'completed' FROM unnest(more) AS m(id);
            wide := wide || more;
            CONTINUE;
        END IF;
        WITH settled AS (
            UPDATE tenure.job_edges d
               SET state = 'completed', ended_at = clock_timestamp(),
                   output = CASE WHEN outputs IS NOT NULL THEN outputs[width_bucket(d.before, jobs)] END
             WHERE d.ctid = ANY (places)
            RETURNING d.after, d.step
        ), noted AS (
            INSERT INTO tenure.group_ends (job_id, ended_as, step)
            SELECT DISTINCT after, 'settled', step FROM settled
        )
        SELECT count(*) INTO done FROM settled;
        EXIT WHEN done >= cardinality(places);
    END LOOP;
    PERFORM set_config('tenure.completes', 'on', true);
    RETURN true;
END $$;

-- As before, without a sort of all edges, without arrays of what it returns, and without the look at what a follower waits for
-- where that is one job alone, which has completed: no edge comes before a follower whose only job has ended, as a member that
-- runs adds edges under its fence.
CREATE OR REPLACE FUNCTION tenure.release_followers(most int)
RETURNS TABLE (id uuid, queue text, kind text, dispatch int, clear_reason text, trace_context text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
    SET plan_cache_mode = force_generic_plan SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    never  CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    edges_at_once CONSTANT int := 5000;
    bytes_at_once CONSTANT int := 16 * 1024 * 1024;
    moment timestamptz;
    noted  bigint[];
    looks  uuid[];
    steps  jsonb;
    ended  uuid[];
    fates  text[];
    sizes  int[];
    is_large boolean := false;
    is_plain boolean := false;
    has_more boolean := false;
    skipped uuid[];
    skips  bigint := 0;
    froms  uuid[];
    known  bigint := 0;
    settled bigint := 0;
    last_edge uuid[];
    sole_n bigint;
    sole   uuid[];
    touched uuid[];
    late   uuid[];
    hurt   uuid[];
    hopeless uuid[];
    moved_steps jsonb;
    waiting uuid[];
    waiting_n bigint[];
    cut    uuid[];
    ready  uuid[];
    doomed uuid[];
    woken  uuid[];
    laned  uuid[];
    free   uuid[];
    failed uuid[];
    held   uuid[];
    busy   uuid[];
    locked uuid[] := '{}';
    one    uuid;
    has_cut boolean := false;
    released_n bigint;
    again  boolean := false;
    careful boolean;
    of     record;
BEGIN
    -- 1. The notes.
    SELECT array_agg(e.id), array_agg(DISTINCT e.job_id) FILTER (WHERE e.ended_as = 'settled' AND e.step IS NULL),
           jsonb_agg(DISTINCT jsonb_build_array(e.job_id, e.step)) FILTER (WHERE e.ended_as = 'settled' AND e.step IS NOT NULL),
           array_agg(DISTINCT e.job_id) FILTER (WHERE e.ended_as <> 'settled'),
           array_agg(DISTINCT e.job_id) FILTER (WHERE e.lacks IS NOT NULL),
           array_agg(DISTINCT e.job_id) FILTER (WHERE e.lacks IN ('cancelled', 'purged'))
      INTO noted, looks, steps, ended, late, hopeless
      FROM (SELECT * FROM tenure.group_ends ORDER BY id LIMIT most FOR UPDATE SKIP LOCKED) e;
    IF noted IS NULL THEN
        RETURN;
    END IF;
    hurt := late;

    -- 2. Edges that the end of their job has not settled.
    IF ended IS NOT NULL THEN
        -- A redrive holds its dead letter until it commits. Of one that this call holds, the redrive will see what this call
        -- writes; of one that a redrive holds, the notes make way for others.
        failed := ARRAY(SELECT g.job_id FROM tenure.group_ends g WHERE g.id = ANY (noted) AND g.ended_as = 'failed');
        SELECT array_agg(d.id) INTO free
          FROM (SELECT d.id FROM tenure.dead_letter_jobs d WHERE d.id = ANY (failed) ORDER BY d.id FOR SHARE SKIP LOCKED) d;
        SELECT array_agg(d.id) INTO held
          FROM tenure.dead_letter_jobs d WHERE d.id = ANY (failed) AND (d.id IN (SELECT unnest(free))) IS NOT TRUE;
        INSERT INTO tenure.group_ends (job_id, ended_as, settled_to)
        SELECT g.job_id, g.ended_as, g.settled_to
          FROM tenure.group_ends g
         WHERE g.id = ANY (noted) AND g.ended_as <> 'settled' AND g.job_id = ANY (held) ORDER BY g.id;
        -- Of two ends of one job a completion counts, or else the later one; a job that is live again has not ended.
        SELECT array_agg(e.job_id ORDER BY e.job_id), array_agg(e.ended_as ORDER BY e.job_id),
               array_agg(CASE WHEN e.ended_as = 'completed'
                              THEN coalesce((SELECT pg_column_size(h.output) FROM tenure.job_history h WHERE h.id = e.job_id), 0)
                              ELSE 0 END ORDER BY e.job_id),
               array_agg(coalesce(e.settled_to, '00000000-0000-0000-0000-000000000000') ORDER BY e.job_id)
          INTO ended, fates, sizes, froms
          FROM (SELECT DISTINCT ON (g.job_id) g.job_id, g.ended_as, g.settled_to
                  FROM tenure.group_ends g
                 WHERE g.id = ANY (noted) AND g.ended_as <> 'settled' AND (g.job_id IN (SELECT unnest(held))) IS NOT TRUE
                 ORDER BY g.job_id, (g.ended_as = 'completed') DESC, g.id DESC) e
         -- Not EXISTS, which a plan may answer by a look at all jobs.
         WHERE e.ended_as = 'completed' OR (SELECT true FROM tenure.jobs j WHERE j.id = e.job_id) IS NULL;
        is_large := (SELECT max(size) FROM unnest(sizes) size) > bytes_at_once / edges_at_once;
        is_plain := 'completed' = ALL (fates) AND 0 = ALL (sizes);
        -- A fate replaces none that is better, as calls may come in another order than the ends did.
        -- An edge that another transaction has locked makes way: its job is noted anew, and the others go on without it.
        FOREACH careful IN ARRAY ARRAY[false, true] LOOP
            BEGIN
                PERFORM set_config('lock_timeout', '100ms', true);
                WITH found AS MATERIALIZED (
                    SELECT d.before, d.after, d.place, d.is_sole
                      FROM unnest(ended, fates, froms) AS e(job, fate, settled_to)
                     CROSS JOIN LATERAL (
                           SELECT d.before, d.after, d.ctid AS place,
                                  e.fate = 'completed' AND d.state IS NULL AND d.step IS NULL
                                  AND NOT EXISTS (SELECT FROM tenure.job_edges o
                                                   WHERE o.after = d.after AND o.before <> d.before) AS is_sole
                             FROM tenure.job_edges d
                            WHERE d.before = e.job AND d.after > e.settled_to
                              AND (d.state IS NULL OR e.fate = 'completed' AND d.state <> 'completed'
                                   OR e.fate IN ('cancelled', 'purged') AND d.state = 'failed')
                            ORDER BY d.after LIMIT edges_at_once) d
                     LIMIT edges_at_once
                ), taken AS MATERIALIZED (
                    SELECT f.before, f.after, f.place, f.is_sole FROM found f WHERE NOT is_large
                     UNION ALL
                    SELECT f.before, f.after, f.place, f.is_sole
                      FROM (SELECT f.*, sum(f.size) OVER (ORDER BY f.before, f.after) AS sum
                              FROM (SELECT f.*, sizes[width_bucket(f.before, ended)] AS size FROM found f WHERE is_large) f) f
                     WHERE f.sum - f.size < bytes_at_once
                ), unlocked AS MATERIALIZED (
                    SELECT d.ctid AS place FROM tenure.job_edges d
                     WHERE d.ctid = ANY (ARRAY(SELECT s.place FROM taken s)) FOR NO KEY UPDATE SKIP LOCKED
                ), passed AS MATERIALIZED (
                    SELECT s.before FROM taken s WHERE careful AND (s.place IN (SELECT u.place FROM unlocked u)) IS NOT TRUE
                ), moved AS (
                    UPDATE tenure.job_edges d
                       SET state = CASE WHEN is_plain THEN 'completed' ELSE fates[width_bucket(d.before, ended)] END,
                           ended_at = clock_timestamp(),
                           output = CASE WHEN is_plain THEN d.output
                                         WHEN fates[width_bucket(d.before, ended)] <> 'completed' THEN NULL
                                         WHEN sizes[width_bucket(d.before, ended)] > 0
                                         THEN coalesce((SELECT h.output FROM tenure.job_history h WHERE h.id = d.before), d.output)
                                         ELSE d.output END
                     WHERE d.ctid = ANY (CASE WHEN careful THEN ARRAY(SELECT u.place FROM unlocked u)
                                              ELSE ARRAY(SELECT s.place FROM taken s) END)
                       -- Again, for an edge that another call has settled meanwhile.
                       AND (d.state IS NULL OR fates[width_bucket(d.before, ended)] = 'completed' AND d.state <> 'completed'
                            OR fates[width_bucket(d.before, ended)] IN ('cancelled', 'purged') AND d.state = 'failed')
                    RETURNING d.after, d.step, d.state
                )
                SELECT (SELECT count(*) FROM taken), (SELECT count(*) FROM taken s WHERE s.is_sole),
                       (SELECT ARRAY[s.before, s.after] FROM taken s ORDER BY s.before DESC, s.after DESC LIMIT 1),
                       (SELECT count(*) = edges_at_once FROM found) OR (SELECT count(*) FROM taken) < (SELECT count(*) FROM found),
                       (SELECT count(*) FROM passed), (SELECT array_agg(DISTINCT p.before) FROM passed p),
                       count(*), array_agg(after) FILTER (WHERE step IS NULL),
                       hurt || array_agg(DISTINCT after) FILTER (WHERE step IS NULL AND state <> 'completed'),
                       hopeless || array_agg(DISTINCT after) FILTER (WHERE step IS NULL AND state IN ('cancelled', 'purged')),
                       jsonb_agg(DISTINCT jsonb_build_array(after, step)) FILTER (WHERE step IS NOT NULL)
                  INTO known, sole_n, last_edge, has_more, skips, skipped, settled, touched, hurt, hopeless, moved_steps
                  FROM moved;
                EXIT;
            EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
                IF careful THEN
                    RAISE;
                END IF;
            END;
        END LOOP;
        PERFORM set_config('lock_timeout', '2s', true);
        -- A follower whose only edge is settled needs no look, unless a failure has cancelled it before. The followers of one
        -- job are mostly of one sort: to look at all of them or at none saves telling them apart.
        IF sole_n = known AND settled = known AND skips = 0
            AND NOT EXISTS (SELECT FROM tenure.followers f WHERE f.job_id = ANY (touched) AND f.cut_at IS NOT NULL)
        THEN
            sole := touched;
            touched := NULL;
        END IF;
        known := known - skips;
        INSERT INTO tenure.group_ends (job_id, ended_as)
        SELECT e.job, e.fate FROM unnest(ended, fates) AS e(job, fate) WHERE e.job = ANY (skipped);
        held := coalesce(held || skipped, held, skipped);
        steps := coalesce(steps || moved_steps, steps, moved_steps);
    END IF;

    -- 3. What becomes of each. A failure decides at once. One that still waits is only remembered: the next look begins at the
    -- edge for which it waits. Whether none is left is decided by a look at all of them.
    SELECT array_agg(v.job_id) FILTER (WHERE NOT v.is_cut AND NOT v.is_open AND (v.on_failure = 'run' OR NOT v.lacks)),
           array_agg(v.job_id) FILTER (WHERE v.is_cut OR NOT v.is_open AND (v.on_failure = 'cancel' AND v.lacks
                                                                         OR v.on_failure = 'hold' AND v.is_beyond_redrive)),
           array_agg(v.job_id) FILTER (WHERE v.is_open), array_agg(coalesce(v.next_n, 0)) FILTER (WHERE v.is_open),
           array_agg(v.job_id) FILTER (WHERE v.was_cut)
      INTO ready, doomed, waiting, waiting_n, cut
      FROM (SELECT f.job_id, f.on_failure, f.cut_at IS NOT NULL AS was_cut, c.is_cut,
                   o.n AS next_n, o.n IS NOT NULL OR e.waits AS is_open,
                   e.lacks, e.is_beyond_redrive
              FROM tenure.followers f
             CROSS JOIN LATERAL (
                   SELECT f.cut_at IS NULL AND CASE f.on_failure WHEN 'cancel' THEN (f.job_id IN (SELECT unnest(hurt))) IS TRUE
                                                                 -- What cannot be redriven will not come.
                                                                 WHEN 'hold' THEN (f.job_id IN (SELECT unnest(hopeless))) IS TRUE
                                                                 ELSE false END AS is_cut
                    OFFSET 0) c
              LEFT JOIN LATERAL (
                   SELECT d.n, d.state FROM tenure.job_edges d
                    WHERE NOT c.is_cut AND d.after = f.job_id AND d.n >= f.open_n AND d.step IS NULL
                      AND (d.state IS NULL OR d.state <> 'completed')
                    ORDER BY d.n LIMIT 1) l ON true
             CROSS JOIN LATERAL (
                   SELECT CASE WHEN l.state IS NULL THEN l.n
                               ELSE (SELECT d.n FROM tenure.job_edges d
                                      WHERE d.after = f.job_id AND d.n > l.n AND d.state IS NULL AND d.step IS NULL
                                      ORDER BY d.n LIMIT 1) END AS n OFFSET 0) o
             CROSS JOIN LATERAL (
                   -- One before `open_n` may be open again: its job was redriven.
                   SELECT coalesce(bool_or(d.state IS NULL), false) AS waits,
                          coalesce(bool_or(d.state <> 'completed'), false) AS lacks,
                          coalesce(bool_or(d.state IN ('cancelled', 'purged')), false) AS is_beyond_redrive
                     FROM tenure.job_edges d
                    WHERE NOT c.is_cut AND o.n IS NULL AND (l.n IS NOT NULL OR f.open_n > 0)
                      AND d.after = f.job_id AND d.step IS NULL) e
             WHERE f.job_id = ANY (looks || touched)) v;
    ready := coalesce(ready || sole, ready, sole);
    IF waiting IS NOT NULL THEN
        UPDATE tenure.followers f SET open_n = w.n
          FROM unnest(waiting, waiting_n) AS w(id, n)
         WHERE f.job_id = w.id AND f.open_n <> w.n
           AND f.job_id IN (SELECT o.job_id FROM tenure.followers o WHERE o.job_id = ANY (waiting) ORDER BY o.job_id
                               FOR NO KEY UPDATE SKIP LOCKED);
    END IF;
    -- The same for jobs of steps. Their rows are locked: a job that is about to be held either is held by now, or is looked at
    -- once more, or will see the edges. A call of another name may have open edges before these.
    IF steps IS NOT NULL THEN
        SELECT array_agg(j.id) INTO free
          FROM (SELECT j.id FROM tenure.jobs j
                 WHERE j.id = ANY (ARRAY(SELECT (w ->> 0)::uuid FROM jsonb_array_elements(steps) AS w))
                 ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED) j;
        WITH seen AS MATERIALIZED (
            SELECT f.job_id, f.open_n,
                   (SELECT d.n FROM tenure.job_edges d
                     WHERE d.after = f.job_id AND d.n >= f.open_n AND d.state IS NULL AND d.step IS NOT NULL
                     ORDER BY d.n LIMIT 1) AS next_n
              FROM tenure.followers f
             WHERE f.job_id = ANY (free)
        ), remembered AS (
            UPDATE tenure.followers f SET open_n = s.next_n
              FROM seen s
             WHERE f.job_id = s.job_id AND s.next_n > s.open_n
               AND f.job_id IN (SELECT o.job_id FROM tenure.followers o WHERE o.job_id = ANY (free) ORDER BY o.job_id
                                   FOR NO KEY UPDATE SKIP LOCKED)
        )
        SELECT array_agg(DISTINCT w.job) INTO woken
          FROM (SELECT (w ->> 0)::uuid AS job, w ->> 1 AS step FROM jsonb_array_elements(steps) AS w) w
          JOIN seen s ON s.job_id = w.job
         WHERE CASE WHEN EXISTS (SELECT FROM tenure.job_edges d
                                  WHERE d.after = w.job AND d.n >= s.next_n AND d.state IS NULL AND d.step = w.step)
                    THEN false
                    ELSE NOT EXISTS (SELECT FROM tenure.job_edges d
                                      WHERE d.after = w.job AND d.state IS NULL AND d.step = w.step) END;
        -- Those that are locked, and those whose last edges another transaction may settle now.
        INSERT INTO tenure.group_ends (job_id, ended_as, step)
        SELECT w.job, 'settled', w.step
          FROM (SELECT (w ->> 0)::uuid AS job, w ->> 1 AS step FROM jsonb_array_elements(steps) AS w) w
         WHERE (w.job IN (SELECT unnest(free))) IS NOT TRUE AND EXISTS (SELECT FROM tenure.jobs j WHERE j.id = w.job)
         UNION
        SELECT w.job, 'settled', w.step
          FROM (SELECT (w ->> 0)::uuid AS job, w ->> 1 AS step FROM jsonb_array_elements(moved_steps) AS w) w
         WHERE (w.job IN (SELECT unnest(free))) IS TRUE AND (w.job IN (SELECT unnest(woken))) IS NOT TRUE;
        again := FOUND AND moved_steps IS NOT NULL;
    END IF;

    -- 4. A follower that was cancelled by a job's failure comes back once that job has completed after all. It has a
    -- clear_reason, as a redriven job has: it stays in its cell. One that cannot come back, or is locked, keeps back no other.
    IF cut IS NOT NULL AND ready IS NOT NULL THEN
        SELECT array_agg(f.job_id) INTO free
          FROM (SELECT f.job_id FROM tenure.followers f
                 WHERE f.job_id = ANY (cut) AND (f.job_id IN (SELECT unnest(ready))) IS TRUE ORDER BY f.job_id
                   FOR NO KEY UPDATE SKIP LOCKED) f;
        INSERT INTO tenure.group_ends (job_id, ended_as)
        SELECT c.id, 'settled'
          FROM unnest(cut) AS c(id)
         WHERE (c.id IN (SELECT unnest(ready))) IS TRUE AND (c.id IN (SELECT unnest(free))) IS NOT TRUE;
    ELSE
        free := NULL;
    END IF;
    FOR of IN
        SELECT f.* FROM tenure.followers f WHERE f.job_id = ANY (free) AND f.cut_at IS NOT NULL ORDER BY f.job_id
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

    -- 5. Those that are cancelled. One that is locked makes way for the others: its row, or the follower, by a redrive that may
    -- be about to hold it. What the locks show counts.
    moment := clock_timestamp();
    free := NULL;
    IF doomed IS NOT NULL THEN
        SELECT array_agg(f.job_id) INTO busy
          FROM (SELECT f.job_id FROM tenure.followers f WHERE f.job_id = ANY (doomed) ORDER BY f.job_id
                   FOR NO KEY UPDATE SKIP LOCKED) f;
        locked := ARRAY(SELECT unnest(doomed) EXCEPT SELECT unnest(busy));
        SELECT array_agg(j.id) INTO free
          FROM (SELECT j.id FROM tenure.jobs j
                 WHERE j.id = ANY (busy) AND j.status = 'queued' AND (j.publish_at = never) IS TRUE AND j.fencing_token = 0
                 ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED) j;
        locked := locked || ARRAY(
            SELECT j.id FROM tenure.jobs j
             WHERE j.id = ANY (busy) AND j.status = 'queued' AND (j.publish_at = never) IS TRUE AND j.fencing_token = 0
               AND (j.id IN (SELECT unnest(free))) IS NOT TRUE);
        INSERT INTO tenure.group_ends (job_id, ended_as, lacks)
        SELECT l.id, 'settled', CASE WHEN (l.id IN (SELECT unnest(hopeless))) IS TRUE THEN 'cancelled'
                                     WHEN (l.id IN (SELECT unnest(hurt))) IS TRUE THEN 'failed' END
          FROM unnest(locked) AS l(id);
    END IF;
    FOR of IN
        SELECT j.id, j.lane, j.priority, j.not_after, j.expires_as, d.before, d.state
          FROM tenure.jobs j
         CROSS JOIN LATERAL (SELECT d.before, d.state FROM tenure.job_edges d
                              WHERE d.after = j.id AND d.state <> 'completed' AND d.state IS NOT NULL
                                AND d.step IS NULL LIMIT 1) d
         WHERE j.id = ANY (free)
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
        has_cut := true;
    END LOOP;
    -- Another transaction may settle the last edges of a follower now, and not see those that this one has settled. And what a
    -- note has said of a failure may be over.
    INSERT INTO tenure.group_ends (job_id, ended_as)
    SELECT DISTINCT t.id, 'settled'
      FROM unnest(touched || late) AS t(id)
     WHERE (t.id IN (SELECT unnest(ready))) IS NOT TRUE AND (t.id IN (SELECT unnest(locked))) IS NOT TRUE;
    again := again OR FOUND;

    -- 6. Those that may go. One without a row that is held has gone already; or another call has just cancelled it; or it has
    -- died, and its redrive may be about to hold it: that locks the follower until it commits.
    FOR pass IN 1..2 LOOP
        EXIT WHEN ready IS NULL;
        IF pass = 2 THEN
            SELECT array_agg(f.job_id) INTO free
              FROM (SELECT f.job_id FROM tenure.followers f WHERE f.job_id = ANY (ready) ORDER BY f.job_id
                       FOR NO KEY UPDATE SKIP LOCKED) f;
            INSERT INTO tenure.group_ends (job_id, ended_as)
            SELECT f.job_id, 'settled' FROM tenure.followers f
             WHERE f.job_id = ANY (ready)
               AND ((f.job_id IN (SELECT unnest(free))) IS NOT TRUE
                    OR f.cut_at IS NOT NULL AND (f.job_id IN (SELECT unnest(cut))) IS NOT TRUE);
            ready := free;
        END IF;
        -- Those of lanes.
        IF EXISTS (SELECT FROM tenure.lane_settings) OR EXISTS (SELECT FROM tenure.lane_jobs) THEN
            laned := ARRAY(
                SELECT j.id FROM tenure.jobs j
                 WHERE j.id = ANY (ready) AND j.status = 'queued' AND (j.publish_at = never) IS TRUE
                   AND (EXISTS (SELECT FROM tenure.lane_jobs l WHERE l.job_id = j.id)
                        OR EXISTS (SELECT FROM tenure.lane_settings s WHERE s.queue = j.queue AND s.removed_at IS NULL)));
            SELECT array_agg(j.id) INTO free
              FROM (SELECT j.id FROM tenure.jobs j WHERE j.id = ANY (laned) ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED) j;
            locked := ARRAY(SELECT unnest(laned) EXCEPT SELECT unnest(free));
            PERFORM set_config('lock_timeout', '100ms', true);
            BEGIN
                IF free IS NOT NULL THEN
                    PERFORM tenure.wake_jobs(free);
                END IF;
            EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
                -- A place in a lane is locked.
                FOREACH one IN ARRAY free LOOP
                    BEGIN
                        PERFORM tenure.wake_jobs(ARRAY[one]);
                    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
                        locked := locked || one;
                    END;
                END LOOP;
            END;
            INSERT INTO tenure.group_ends (job_id, ended_as) SELECT l.id, 'settled' FROM unnest(locked) AS l(id);
            IF cardinality(laned) > 0 THEN
                ready := ARRAY(SELECT unnest(ready) EXCEPT SELECT unnest(laned));
            END IF;
        END IF;
        LOOP
            PERFORM set_config('lock_timeout', '100ms', true);
            BEGIN
                -- The time that never comes is compared so that no plan goes through all jobs that have it. Sorted: what
                -- is returned stays, also if a lock ends the statement, and a sort returns nothing before the last row is changed.
                RETURN QUERY WITH released AS (
                    UPDATE tenure.jobs j
                       SET dispatch = j.dispatch + 1, scheduled_at = moment, publish_at = NULL,
                           published_at = clock_timestamp()
                     WHERE j.id = ANY (ready) AND j.status = 'queued' AND (j.publish_at = never) IS TRUE
                       AND ((SELECT true FROM tenure.lane_jobs LIMIT 1) IS NULL
                            OR (SELECT true FROM tenure.lane_jobs l WHERE l.job_id = j.id) IS NULL)
                    RETURNING j.id, j.queue, j.kind, j.dispatch, j.clear_reason, j.trace_context
                )
                SELECT r.* FROM released r ORDER BY r.id;
                GET DIAGNOSTICS released_n = ROW_COUNT;
                EXIT;
            EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
                -- Those whose rows are locked make way for the others. One without a row that can be seen is for the second pass.
                SELECT array_agg(j.id) INTO free
                  FROM (SELECT j.id FROM tenure.jobs j WHERE j.id = ANY (ready) ORDER BY j.id
                           FOR NO KEY UPDATE SKIP LOCKED) j;
                locked := ARRAY(SELECT j.id FROM tenure.jobs j
                                 WHERE j.id = ANY (ready) AND (j.id IN (SELECT unnest(free))) IS NOT TRUE);
                INSERT INTO tenure.group_ends (job_id, ended_as) SELECT l.id, 'settled' FROM unnest(locked) AS l(id);
                ready := ARRAY(SELECT unnest(ready) EXCEPT SELECT unnest(locked));
            END;
        END LOOP;
        -- Those that this call has released are due at its moment.
        ready := CASE WHEN pass = 1 AND cardinality(ready) > released_n
                      THEN ARRAY(SELECT DISTINCT r.id FROM unnest(ready) AS r(id)
                                  WHERE NOT EXISTS (SELECT FROM tenure.jobs j
                                                     WHERE j.id = r.id AND j.publish_at IS NULL AND j.scheduled_at = moment)) END;
    END LOOP;
    IF woken IS NOT NULL THEN
        -- An attempt that runs may not have seen the end of the last of these jobs: its settle compares when they ended with
        -- when it began, and they ended before their end was committed. The job's row is locked here and at the settle.
        FOR of IN
            SELECT DISTINCT j.id AS job, w ->> 1 AS step
              FROM jsonb_array_elements(steps) AS w
              JOIN tenure.jobs j ON j.id = (w ->> 0)::uuid
             WHERE j.id = ANY (woken) AND j.status = 'processing'
        LOOP
            UPDATE tenure.job_edges d
               SET ended_at = clock_timestamp()
             WHERE d.ctid = (SELECT e.ctid FROM tenure.job_edges e
                              WHERE e.after = of.job AND e.step = of.step AND e.state IS NOT NULL
                              ORDER BY e.n DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED);
            IF NOT FOUND THEN
                INSERT INTO tenure.group_ends (job_id, ended_as, step) VALUES (of.job, 'settled', of.step);
            END IF;
        END LOOP;
        BEGIN
            PERFORM set_config('lock_timeout', '100ms', true);
            PERFORM tenure.wake_jobs(woken);
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            INSERT INTO tenure.group_ends (job_id, ended_as, step)
            SELECT (w ->> 0)::uuid, 'settled', w ->> 1
              FROM jsonb_array_elements(steps) AS w WHERE (w ->> 0)::uuid = ANY (woken);
        END;
    END IF;

    -- 7. Ends that have edges left: the next call goes on; also where another one has changed some of those that were found.
    IF NOT has_more AND settled >= known THEN
        DELETE FROM tenure.group_ends g WHERE g.id = ANY (noted);
    ELSE
        DELETE FROM tenure.group_ends g
         WHERE g.id = ANY (noted)
           AND (g.ended_as = 'settled' OR (g.job_id IN (SELECT unnest(held))) IS TRUE
                OR settled >= known AND g.job_id < last_edge[1]);
        UPDATE tenure.group_ends g SET settled_to = last_edge[2]
         WHERE g.id = ANY (noted) AND g.job_id = last_edge[1] AND g.ended_as <> 'settled' AND settled >= known;
    END IF;
    IF cardinality(noted) = most OR has_more OR settled < known OR has_cut OR again THEN
        RETURN QUERY SELECT NULL::uuid, NULL::text, NULL::text, NULL::int, NULL::text, NULL::text;
    END IF;
END $$;
