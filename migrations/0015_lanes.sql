-- Lanes: fair turns, limits and rates by a key that the producer says, priority, order, debounce, expiry.
--
-- Hold the ticket, not the job: a job of a queue with lanes is *held*. It is queued, its `publish_at` never comes, and so
-- no claim takes it. `tenure.admit` releases it: it gives the job a slot and a token of its lane, and the caller
-- publishes its message. A slot is judged by its job, so that none can leak; no claim and no completion knows of lanes.

-- lane: the key; '' in a queue with lanes, if the producer said none. priority: the lower, the sooner. not_after: the job
-- does not start later; it then ends as expires_as says: NULL, a dead letter, or 'cancelled'.
ALTER TABLE tenure.jobs
    ADD COLUMN lane       text,
    ADD COLUMN priority   smallint,
    ADD COLUMN not_after  timestamptz,
    ADD COLUMN expires_as text;
-- A redriven job goes back to its lane.
ALTER TABLE tenure.dead_letter_jobs
    ADD COLUMN lane       text,
    ADD COLUMN priority   smallint;

-- Whether `take_key` has taken the key.
ALTER TABLE tenure.job_keys ADD COLUMN lasting boolean;

-- Held jobs among the figures of the fleet. held: all of a queue; held_due: those whose time has come, which wait for
-- their lane; lanes_waiting: the lanes that have any of these.
ALTER TABLE tenure.queue_stats
    ADD COLUMN held          bigint NOT NULL DEFAULT 0,
    ADD COLUMN held_due      bigint NOT NULL DEFAULT 0,
    ADD COLUMN lanes_waiting bigint NOT NULL DEFAULT 0;

-- A row for each queue with lanes. rate: tokens a second; burst: the most tokens. `running`, `rate` and `burst` are those
-- of each lane, `queue_…` those of the whole queue. turns: only a window of the queue's jobs has messages.
CREATE TABLE tenure.lane_settings (
    queue        text        PRIMARY KEY,
    running      int         CHECK (running > 0),
    rate         float8      CHECK (rate > 0),
    burst        float8      CHECK (burst >= 1),
    queue_rate   float8      CHECK (queue_rate > 0),
    queue_burst  float8      CHECK (queue_burst >= 1),
    turns        boolean     NOT NULL,
    ordered      boolean     NOT NULL,
    tokens       float8,                                    -- of the queue, at refilled_at
    refilled_at  timestamptz,
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    removed_at   timestamptz,                               -- the queue has no lanes any more; what is held is being released
    CONSTRAINT a_rate_has_a_burst CHECK ((rate IS NULL) = (burst IS NULL) AND (queue_rate IS NULL) = (queue_burst IS NULL))
);

-- A row for each lane that has waiting or running jobs, or settings of its own. turn: its place among the lanes that may
-- release a job now; NULL: it may not. passed: the turns that it has had, as virtual time. next_at: when to look again.
CREATE TABLE tenure.lanes (
    queue        text        NOT NULL,
    lane         text        NOT NULL,
    turn         float8,
    passed       float8      NOT NULL DEFAULT 0,
    tokens       float8,
    refilled_at  timestamptz,
    next_at      timestamptz,
    weight       float8      CHECK (weight > 0),             -- NULL: 1
    running      int         CHECK (running > 0),            -- NULL: as the queue says
    PRIMARY KEY (queue, lane)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lanes_in_turn ON tenure.lanes (queue, turn) WHERE turn IS NOT NULL;
CREATE INDEX lanes_later ON tenure.lanes (next_at) WHERE next_at IS NOT NULL;

-- The held jobs, in order. place: NULL until the job is due, then the time since when, in microseconds; of an ordered
-- queue 0, from the start. arrival: the order of enqueue.
CREATE TABLE tenure.lane_jobs (
    job_id       uuid        PRIMARY KEY,
    queue        text        NOT NULL,
    lane         text        NOT NULL,
    priority     smallint    NOT NULL,
    place        bigint,
    arrival      bigint      GENERATED ALWAYS AS IDENTITY,
    due_at       timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000);
CREATE INDEX lane_jobs_in_line ON tenure.lane_jobs (queue, lane, priority, place, arrival) WHERE place IS NOT NULL;

-- The released jobs. A slot is taken while its job is live and not held. fencing_token: the job's at its release.
CREATE TABLE tenure.lane_slots (
    queue         text       NOT NULL,
    lane          text       NOT NULL,
    job_id        uuid       NOT NULL,
    fencing_token bigint     NOT NULL,
    PRIMARY KEY (queue, lane, job_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

-- A lane to look at, from a time on: a transaction that adds a job cannot touch the lane's row, which others wait for.
-- job_id: a job that is due then.
CREATE TABLE tenure.lane_wakes (
    at           timestamptz NOT NULL,
    id           bigint      GENERATED ALWAYS AS IDENTITY,
    queue        text        NOT NULL,
    lane         text        NOT NULL,
    job_id       uuid,
    PRIMARY KEY (at, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lane_wakes_of_lane ON tenure.lane_wakes (queue, lane) WHERE job_id IS NULL;

-- Jobs that may expire: one statement a second ends those that have.
CREATE TABLE tenure.job_expiries (
    at           timestamptz NOT NULL,
    job_id       uuid        NOT NULL,
    PRIMARY KEY (at, job_id)
);

-- Holds the jobs that are inserted into a queue with lanes, by any program. `put_lanes` creates a trigger for each such
-- queue; others cost nothing. Its argument says whether the lanes are ordered.
-- SECURITY DEFINER: a producer writes no lanes.
CREATE FUNCTION tenure.hold_in_lane() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    due    CONSTANT timestamptz := NEW.scheduled_at;
    is_due CONSTANT boolean := due <= clock_timestamp();
    ahead  bigint := CASE WHEN TG_ARGV[0] = 'ordered' THEN 0
                          WHEN is_due THEN (extract(epoch FROM due) * 1000000)::bigint END;
    woken  text;
BEGIN
    NEW.lane := coalesce(NEW.lane, '');
    NEW.priority := coalesce(NEW.priority, 0);
    INSERT INTO tenure.lane_jobs (job_id, queue, lane, priority, place, due_at)
    VALUES (NEW.id, NEW.queue, NEW.lane, CASE WHEN TG_ARGV[0] = 'ordered' THEN 0 ELSE NEW.priority END, ahead, due);
    -- One wake for all due jobs that a transaction adds to a lane.
    woken := NEW.queue || ' ' || NEW.lane;
    IF NOT is_due OR current_setting('tenure.woken', true) IS DISTINCT FROM woken THEN
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
REVOKE ALL ON FUNCTION tenure.hold_in_lane() FROM PUBLIC;

-- Releases jobs of a queue: gives the lanes whose turn it is slots and tokens, and their first jobs a message each, which
-- the caller publishes. If the caller dies, the relay finds those messages missing.
--
--   of: the queue   names: the lanes to look at first, because a job of theirs has ended or is new; sorted
--   ended: the jobs that ended; NULL: any job of these lanes may have   most: how many jobs to release
--
-- Each statement of a plpgsql function sees what is committed when it begins: the slots are counted after the lanes' rows
-- are locked, and so two calls cannot both see the last free slot. A call waits for the lanes that it names: the other
-- call may not have seen what this one knows. Those in the line are passed over if another call has them; so are named
-- ones if ended is NULL: their wakes stay.
CREATE FUNCTION tenure.admit(of text, names text[], ended uuid[], most int)
RETURNS TABLE (id uuid, queue text, kind text, dispatch int, clear_reason text, trace_context text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET plan_cache_mode = force_generic_plan SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    s      tenure.lane_settings;
    never  CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    moment timestamptz;
    room   bigint := most;
    held   text[];
    line   text[];
    first  float8;
    unused bigint;
    spare  CONSTANT bigint := 16;
    turn_1 CONSTANT float8 := 0.00001;                      -- one turn of a lane of weight 1
BEGIN
    -- 1. The lanes that this call names. New ones first: a call that waits for another one's row must not hold any. A row
    -- that is swept meanwhile has no slot; its wakes stay.
    INSERT INTO tenure.lanes (queue, lane)
    SELECT of, n FROM unnest(names) AS n
     WHERE NOT EXISTS (SELECT FROM tenure.lanes l WHERE l.queue = of AND l.lane = n)
     ORDER BY n
        ON CONFLICT DO NOTHING;
    IF EXISTS (SELECT FROM tenure.lane_settings l WHERE l.queue = of AND l.queue_rate IS NOT NULL) THEN
        -- One call at a time: they share the queue's tokens.
        IF ended IS NULL THEN
            PERFORM FROM tenure.lane_settings l WHERE l.queue = of FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                RETURN;
            END IF;
        ELSE
            PERFORM FROM tenure.lane_settings l WHERE l.queue = of FOR NO KEY UPDATE;
        END IF;
    END IF;
    IF ended IS NULL THEN
        SELECT array_agg(l.lane) INTO held
          FROM (SELECT lane FROM tenure.lanes WHERE queue = of AND lane = ANY (names)
                 ORDER BY lane FOR NO KEY UPDATE SKIP LOCKED) l;
    ELSE
        SELECT array_agg(l.lane) INTO held
          FROM (SELECT lane FROM tenure.lanes WHERE queue = of AND lane = ANY (names) ORDER BY lane FOR NO KEY UPDATE) l;
    END IF;
    -- Not earlier: tenure.put_lanes changes settings while no call has touched the table of lanes.
    SELECT * INTO s FROM tenure.lane_settings l WHERE l.queue = of;
    held := coalesce(held, '{}');
    moment := clock_timestamp();
    IF held <> '{}' THEN
        -- This call sees the jobs of each wake that it sees.
        DELETE FROM tenure.lane_wakes w
         WHERE w.ctid = ANY (ARRAY(SELECT ctid FROM tenure.lane_wakes
                                    WHERE queue = of AND lane = ANY (held) AND job_id IS NULL
                                      FOR UPDATE SKIP LOCKED));
    END IF;

    -- 2. What has ended frees its slot. The token of a released job that ended before a worker took it comes back.
    IF held <> '{}' AND (ended IS NULL OR ended <> '{}') THEN
        WITH freed AS (
            DELETE FROM tenure.lane_slots sl
             WHERE sl.queue = of AND sl.lane = ANY (held) AND (ended IS NULL OR sl.job_id = ANY (ended))
               AND NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = sl.job_id AND j.publish_at IS DISTINCT FROM never)
            RETURNING sl.lane, sl.job_id, sl.fencing_token
        ), unused AS (
            SELECT f.lane, count(*) AS jobs
              FROM freed f
             WHERE (s.rate IS NOT NULL OR s.queue_rate IS NOT NULL)
               AND (EXISTS (SELECT FROM tenure.job_history h
                             WHERE h.id = f.job_id AND h.claim_id IS NULL AND h.fencing_token = f.fencing_token)
                    OR EXISTS (SELECT FROM tenure.dead_letter_jobs d
                                WHERE d.id = f.job_id AND d.claim_id IS NULL AND d.fencing_token = f.fencing_token))
             GROUP BY f.lane
        ), back AS (
            UPDATE tenure.lanes l SET tokens = l.tokens + u.jobs FROM unused u WHERE l.queue = of AND l.lane = u.lane
        )
        SELECT sum(jobs) INTO unused FROM unused;
    END IF;

    -- 3. How many jobs may go?
    IF s.turns THEN
        room := least(room, greatest(16, 2 * (SELECT coalesce(sum(w.slots), 0) FROM tenure.workers w
                                               WHERE of = ANY (w.queues)
                                                 AND w.last_seen_at > statement_timestamp() - 3 * w.renew_every))
                            - CASE WHEN s.ordered THEN
                                  -- A job that backs off keeps its lane's slot, and has no message.
                                  (SELECT count(*) FROM tenure.lane_slots sl
                                     JOIN tenure.jobs j ON j.id = sl.job_id
                                                       AND (j.status = 'processing' OR j.published_at IS NOT NULL)
                                    WHERE sl.queue = of)
                              ELSE (SELECT count(*) FROM tenure.lane_slots sl WHERE sl.queue = of) END);
    END IF;
    IF s.queue_rate IS NOT NULL THEN
        -- Messages that no worker has taken keep their tokens: after a pause they start at once.
        s.tokens := least(greatest(0, s.queue_burst
                                      - (SELECT count(*) FROM tenure.lane_slots sl
                                           JOIN tenure.jobs j ON j.id = sl.job_id AND j.status = 'queued'
                                                             AND j.published_at IS NOT NULL
                                          WHERE sl.queue = of)),
                          coalesce(s.tokens + coalesce(unused, 0)
                                   + s.queue_rate * greatest(0, extract(epoch FROM moment - s.refilled_at)), s.queue_burst));
        UPDATE tenure.lane_settings l SET tokens = s.tokens, refilled_at = moment WHERE l.queue = of;
        room := least(room, floor(s.tokens));
    END IF;
    IF EXISTS (SELECT FROM tenure.queues q WHERE q.queue = of AND q.paused_at IS NOT NULL) THEN
        room := 0;
    END IF;
    room := greatest(room, 0);
    IF room = 0 AND held = '{}' THEN
        RETURN;
    END IF;

    -- 4. And the lanes in the line, by turn: no more than may release a job.
    SELECT array_agg(l.lane) INTO line
      FROM (SELECT lane FROM tenure.lanes WHERE queue = of AND turn IS NOT NULL
             ORDER BY queue, turn LIMIT least(room, 1000) FOR NO KEY UPDATE SKIP LOCKED) l;
    line := held || coalesce(ARRAY(SELECT n FROM unnest(line) AS n WHERE n <> ALL (held)), '{}');
    -- Turns count on from the clock whenever the line is empty. A lane that joins the line owes no more than its last turn:
    -- those that it had while the others were away are not held against it.
    first := coalesce((SELECT min(turn) FROM tenure.lanes WHERE queue = of AND turn IS NOT NULL),
                      extract(epoch FROM moment) - 1700000000);

    -- 5. What each lane may release, and the first of all these by turn. A lane that had few turns may have several of
    -- them. Each offers twice its share, or one call would read a long line whole; and one job more, which says whether
    -- it stays in the line.
    RETURN QUERY
    WITH lane AS MATERIALIZED (
        SELECT l.lane, coalesce(l.turn, greatest(first, least(l.passed, first + turn_1 / coalesce(l.weight, 1)))) AS turn,
               coalesce(l.weight, 1) AS weight, CASE WHEN s.ordered THEN 1 ELSE coalesce(l.running, s.running) END
                 - (SELECT count(*) FROM tenure.lane_slots sl WHERE sl.queue = of AND sl.lane = l.lane) AS free,
               CASE WHEN s.rate IS NOT NULL THEN
                   least(greatest(0, s.burst - (SELECT count(*) FROM tenure.lane_slots sl
                                                  JOIN tenure.jobs j ON j.id = sl.job_id AND j.status = 'queued'
                                                                    AND j.published_at IS NOT NULL
                                                 WHERE sl.queue = of AND sl.lane = l.lane)),
                         coalesce(l.tokens + s.rate * greatest(0, extract(epoch FROM moment - l.refilled_at)), s.burst))
               END AS tokens
          FROM tenure.lanes l
         WHERE l.queue = of AND l.lane = ANY (line)
    ), offer AS MATERIALIZED (
        SELECT l.*, w.job_id, w.due_at, w.n
          FROM lane l
          LEFT JOIN LATERAL (
               SELECT f.job_id, f.due_at, row_number() OVER (ORDER BY f.priority, f.place, f.arrival) AS n
                 FROM (SELECT * FROM tenure.lane_jobs w
                        WHERE w.queue = of AND w.lane = l.lane AND w.place IS NOT NULL
                        ORDER BY w.priority, w.place, w.arrival
                        LIMIT 1 + greatest(0, least(l.free, floor(l.tokens), 1 + 2 * room / cardinality(line)))) f) w ON true
    ), chosen AS MATERIALIZED (
        SELECT o.lane, o.job_id, o.turn + (o.n - 1) * turn_1 / o.weight AS at, o.n
          FROM offer o
         WHERE o.due_at <= moment AND o.n <= coalesce(o.free, o.n) AND o.n <= coalesce(o.tokens, o.n)
         ORDER BY at, o.lane, o.n
         LIMIT room + CASE WHEN room > 0 THEN spare ELSE 0 END
    ), got AS MATERIALIZED (
        -- A job that another transaction has locked is passed over: it may be cancelled, or get another payload. Those
        -- chosen beyond the room stand in for it.
        SELECT j.id
          FROM chosen c JOIN tenure.jobs j ON j.id = c.job_id
         WHERE j.publish_at = never
         ORDER BY c.at, c.lane, c.n
         LIMIT room
           FOR NO KEY UPDATE OF j SKIP LOCKED
    ), taken AS (
        DELETE FROM tenure.lane_jobs w
         WHERE w.job_id = ANY (ARRAY(SELECT job_id FROM chosen))
           AND (w.job_id = ANY (ARRAY(SELECT id FROM got))
                OR NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = w.job_id AND j.publish_at = never))
        RETURNING w.job_id
    ), released AS (
        UPDATE tenure.jobs j
           SET dispatch = j.dispatch + 1, scheduled_at = moment, publish_at = NULL, published_at = clock_timestamp()
         WHERE j.id = ANY (ARRAY(SELECT id FROM got))
        RETURNING j.id, j.queue, j.kind, j.dispatch, j.clear_reason, j.trace_context, j.fencing_token,
                  -- It runs no more: the claim refuses it.
                  coalesce(j.not_after <= moment, false) AS is_late
    ), slots AS (
        INSERT INTO tenure.lane_slots AS sl (queue, lane, job_id, fencing_token)
        SELECT of, c.lane, r.id, r.fencing_token
          FROM released r JOIN chosen c ON c.job_id = r.id
         WHERE NOT r.is_late
            ON CONFLICT (queue, lane, job_id) DO UPDATE SET fencing_token = excluded.fencing_token
    ), served AS (
        SELECT o.lane, o.turn, o.weight, o.free, o.tokens, count(t.job_id) AS jobs,
               count(r.id) FILTER (WHERE NOT r.is_late) AS starts,
               count(*) FILTER (WHERE o.due_at <= moment AND (o.n = 1 OR NOT coalesce(s.ordered, false))) AS offers,
               -- Its first jobs are locked: others are not to wait behind it.
               count(c.job_id) > 0 AND count(t.job_id) = 0 AND (SELECT count(*) FROM got) < room AS is_stuck,
               min(o.due_at) FILTER (WHERE o.due_at > moment) AS next_due_at
          FROM offer o
          LEFT JOIN chosen c ON c.job_id = o.job_id
          LEFT JOIN taken t ON t.job_id = o.job_id
          LEFT JOIN released r ON r.id = o.job_id
         GROUP BY o.lane, o.turn, o.weight, o.free, o.tokens
    ), after AS (
        SELECT v.lane, v.starts, v.turn + v.starts * turn_1 / v.weight AS passed, v.tokens - v.starts AS tokens,
               v.offers > v.jobs AND coalesce(v.free > v.starts, true) AND NOT v.is_stuck AS waits,
               CASE WHEN v.is_stuck THEN moment + interval '100 milliseconds'
                    WHEN v.offers <= v.jobs THEN v.next_due_at
                    WHEN v.tokens - v.starts < 1 AND coalesce(v.free > v.starts, true)
                    THEN moment + interval '1 second' * greatest(0.01, (1 - (v.tokens - v.starts)) / s.rate) END AS next_at
          FROM served v
    ), moved AS (
        UPDATE tenure.lanes l
           SET passed = CASE WHEN a.starts > 0 THEN a.passed ELSE l.passed END,
               turn = CASE WHEN a.waits AND coalesce(a.tokens >= 1, true) THEN a.passed END,
               tokens = a.tokens, refilled_at = CASE WHEN a.tokens IS NOT NULL THEN moment END, next_at = a.next_at
          FROM after a
         WHERE l.queue = of AND l.lane = a.lane
           AND (a.starts > 0 OR a.tokens IS NOT NULL OR l.next_at IS DISTINCT FROM a.next_at
                OR (l.turn IS NOT NULL) <> a.waits)
    ), spent AS (
        UPDATE tenure.lane_settings l
           SET tokens = l.tokens - (SELECT count(*) FROM released r WHERE NOT r.is_late)
         WHERE l.queue = of AND s.queue_rate IS NOT NULL
    )
    SELECT r.id, r.queue, r.kind, r.dispatch, r.clear_reason, r.trace_context
      FROM chosen c
      JOIN released r ON r.id = c.job_id
     ORDER BY c.at, c.lane, c.n;
END $$;
REVOKE ALL ON FUNCTION tenure.admit(text, text[], uuid[], int) FROM PUBLIC;

-- Looks after lanes: those that a commit has woken, whose time has come, whose slots are free although no worker said so,
-- and all whose turn it is. The relay calls it at each of its looks.
--
--   most: how many jobs to release of each queue   judge: whether to look for slots of jobs that ended unseen
--
-- A call takes some lanes, so that no other call waits for it for long; a row without an id says that there are more.
CREATE FUNCTION tenure.tend_lanes(most int, judge boolean)
RETURNS TABLE (id uuid, queue text, kind text, dispatch int, clear_reason text, trace_context text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    moment   CONSTANT timestamptz := clock_timestamp();
    lanes_at_once CONSTANT int := 200;
    has_more boolean := false;
    released bigint;
    woken    jsonb;
    of       record;
BEGIN
    -- Jobs whose time has come. A transaction that moves a job on has written another wake, and may stay open for long.
    WITH due AS MATERIALIZED (
        SELECT w.at, w.id, w.queue, w.lane, w.job_id FROM tenure.lane_wakes w
         WHERE w.at <= moment AND w.job_id IS NOT NULL
         ORDER BY w.at, w.id LIMIT 1000 FOR UPDATE SKIP LOCKED
    ), job AS MATERIALIZED (
        SELECT l.job_id FROM tenure.lane_jobs l
         WHERE l.job_id = ANY (ARRAY(SELECT job_id FROM due))
           FOR UPDATE SKIP LOCKED
    ), placed AS (
        UPDATE tenure.lane_jobs l
           SET place = (extract(epoch FROM l.due_at) * 1000000)::bigint
         WHERE l.job_id = ANY (ARRAY(SELECT job_id FROM job)) AND l.place IS NULL AND l.due_at <= moment
    ), gone AS (
        DELETE FROM tenure.lane_wakes w
         USING due
         WHERE w.at = due.at AND w.id = due.id
           AND (due.job_id IN (SELECT job_id FROM job)
                OR NOT EXISTS (SELECT FROM tenure.lane_jobs l WHERE l.job_id = due.job_id))
        RETURNING w.queue, w.lane
    ), put_off AS (
        -- Not before the others again.
        UPDATE tenure.lane_wakes w
           SET at = moment + interval '1 second'
          FROM due
         WHERE w.at = due.at AND w.id = due.id
           AND NOT (due.job_id IN (SELECT job_id FROM job)
                    OR NOT EXISTS (SELECT FROM tenure.lane_jobs l WHERE l.job_id = due.job_id))
    )
    INSERT INTO tenure.lane_wakes (at, queue, lane) SELECT DISTINCT moment, queue, lane FROM gone;

    SELECT jsonb_agg(jsonb_build_array(w.queue, w.lane)), count(*) = lanes_at_once INTO woken, has_more
      FROM (SELECT DISTINCT queue, lane
              FROM (SELECT w.queue, w.lane FROM tenure.lane_wakes w
                     WHERE w.at <= moment AND w.job_id IS NULL ORDER BY w.at, w.id LIMIT 2000) w
             LIMIT lanes_at_once) w;
    FOR of IN
        WITH looks (queue, lane) AS (
            SELECT pair ->> 0, pair ->> 1 FROM jsonb_array_elements(woken) AS pair
             UNION
            (SELECT queue, lane FROM tenure.lanes WHERE next_at <= moment ORDER BY next_at LIMIT lanes_at_once)
             UNION
            (SELECT sl.queue, sl.lane FROM tenure.lane_slots sl
              WHERE judge
                AND NOT EXISTS (SELECT FROM tenure.jobs j
                                 WHERE j.id = sl.job_id AND j.publish_at IS DISTINCT FROM '9999-01-01 00:00:00+00')
              LIMIT lanes_at_once)
        )
        SELECT n.queue, (SELECT array_agg(k.lane ORDER BY k.lane) FROM looks k WHERE k.queue = n.queue) AS lanes
          FROM (SELECT queue FROM looks
                 UNION
                SELECT queue FROM tenure.lane_settings s
                 WHERE EXISTS (SELECT FROM tenure.lanes l WHERE l.queue = s.queue AND l.turn IS NOT NULL)) n
         ORDER BY n.queue
    LOOP
        RETURN QUERY SELECT * FROM tenure.admit(of.queue, of.lanes, NULL, most);
        GET DIAGNOSTICS released = ROW_COUNT;
        has_more := has_more OR released >= most;
    END LOOP;
    IF has_more THEN
        RETURN QUERY SELECT NULL::uuid, NULL::text, NULL::text, NULL::int, NULL::text, NULL::text;
    END IF;
END $$;
REVOKE ALL ON FUNCTION tenure.tend_lanes(int, boolean) FROM PUBLIC;

-- Gives the held jobs of a queue the places that they have in ordered lanes, or in others.
CREATE FUNCTION tenure.place_anew(of text, ordered boolean) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    WITH moved AS (
        UPDATE tenure.lane_jobs l
           SET place = CASE WHEN place_anew.ordered THEN 0
                            WHEN l.due_at <= clock_timestamp() THEN (extract(epoch FROM l.due_at) * 1000000)::bigint END,
               priority = CASE WHEN place_anew.ordered THEN 0
                               ELSE coalesce((SELECT j.priority FROM tenure.jobs j WHERE j.id = l.job_id), 0) END
         WHERE l.queue = place_anew.of
        RETURNING l.job_id, l.queue, l.lane, l.place, l.due_at
    )
    INSERT INTO tenure.lane_wakes (at, queue, lane, job_id)
    SELECT due_at, queue, lane, job_id FROM moved WHERE place IS NULL
$$;
REVOKE ALL ON FUNCTION tenure.place_anew(text, boolean) FROM PUBLIC;

-- Gives a queue lanes, or changes their settings. From its commit on, every new job of the queue is held. CREATE TRIGGER
-- waits for every transaction that has inserted a job; others wait behind it for `patience` at most.
-- SECURITY DEFINER: the person on call does not own the table.
CREATE FUNCTION tenure.put_lanes(of text, running int, rate float8, burst float8, queue_rate float8, queue_burst float8,
                                 turns boolean, ordered boolean, patience text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    had tenure.lane_settings;
BEGIN
    PERFORM set_config('lock_timeout', patience, true);
    -- No call of tenure.admit is under way that has read the old settings. First: admit takes these locks in this order.
    LOCK TABLE tenure.lanes IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO had FROM tenure.lane_settings s WHERE s.queue = put_lanes.of FOR NO KEY UPDATE;
    IF had.queue IS NULL OR had.removed_at IS NOT NULL OR had.ordered <> put_lanes.ordered THEN
        EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE INSERT ON tenure.jobs FOR EACH ROW
                          WHEN (NEW.queue = %L) EXECUTE FUNCTION tenure.hold_in_lane(%L)',
                       replace(tenure.mark_of(of), 'mark_', 'lanes_'), of, CASE WHEN put_lanes.ordered THEN 'ordered' ELSE '' END);
    END IF;
    INSERT INTO tenure.lane_settings AS s (queue, running, rate, burst, queue_rate, queue_burst, turns, ordered)
    VALUES (put_lanes.of, put_lanes.running, put_lanes.rate, put_lanes.burst, put_lanes.queue_rate, put_lanes.queue_burst,
            put_lanes.turns, put_lanes.ordered)
        ON CONFLICT (queue) DO UPDATE
       SET running = excluded.running, rate = excluded.rate, burst = excluded.burst, queue_rate = excluded.queue_rate,
           queue_burst = excluded.queue_burst, turns = excluded.turns, ordered = excluded.ordered,
           changed_at = clock_timestamp(), removed_at = NULL;
    IF had.ordered <> put_lanes.ordered THEN
        PERFORM tenure.place_anew(of, put_lanes.ordered);
    END IF;
    -- Each lane is looked at under the new settings.
    UPDATE tenure.lanes l SET next_at = clock_timestamp() WHERE l.queue = put_lanes.of;
END $$;
REVOKE ALL ON FUNCTION tenure.put_lanes(text, int, float8, float8, float8, float8, boolean, boolean, text) FROM PUBLIC;

-- Takes hold of jobs that stood in a queue before it had lanes: a published or running one gets a slot, one that waits
-- for its time is held. Returns how many; repeat until that is 0.
CREATE FUNCTION tenure.adopt_jobs(of text, most int) RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
    SET lock_timeout = '300ms' AS $$
#variable_conflict use_column
DECLARE
    found_jobs int;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT j.id, j.lane, j.fencing_token
          FROM tenure.jobs j
         WHERE j.queue = adopt_jobs.of AND (j.status = 'processing' OR j.publish_at IS NULL)
           AND NOT EXISTS (SELECT FROM tenure.lane_slots sl
                            WHERE sl.queue = adopt_jobs.of AND sl.lane = coalesce(j.lane, '') AND sl.job_id = j.id)
         LIMIT most
    ), slots AS (
        INSERT INTO tenure.lane_slots (queue, lane, job_id, fencing_token)
        SELECT adopt_jobs.of, coalesce(lane, ''), id, fencing_token FROM old
            ON CONFLICT DO NOTHING
        RETURNING 1
    ), waiting AS MATERIALIZED (
        SELECT j.id, j.lane, j.priority, j.publish_at
          FROM tenure.jobs j
         WHERE j.queue = adopt_jobs.of AND j.status = 'queued' AND j.publish_at < '9999-01-01 00:00:00+00'
           AND NOT EXISTS (SELECT FROM tenure.lane_slots sl
                            WHERE sl.queue = adopt_jobs.of AND sl.lane = coalesce(j.lane, '') AND sl.job_id = j.id)
         LIMIT most
           FOR NO KEY UPDATE
    ), lined AS (
        INSERT INTO tenure.lane_jobs (job_id, queue, lane, priority, place, due_at)
        SELECT w.id, adopt_jobs.of, coalesce(w.lane, ''), CASE WHEN o.ordered THEN 0 ELSE coalesce(w.priority, 0) END,
               CASE WHEN o.ordered THEN 0 END, w.publish_at
          FROM waiting w, tenure.lane_settings o
         WHERE o.queue = adopt_jobs.of
         ORDER BY w.publish_at, w.id
            ON CONFLICT DO NOTHING
    ), woken AS (
        INSERT INTO tenure.lane_wakes (at, queue, lane, job_id)
        SELECT publish_at, adopt_jobs.of, coalesce(lane, ''), id FROM waiting
    ), named AS (
        UPDATE tenure.jobs j
           SET lane = coalesce(j.lane, ''), priority = coalesce(j.priority, 0),
               scheduled_at = '9999-01-01 00:00:00+00', publish_at = '9999-01-01 00:00:00+00'
         WHERE j.id = ANY (ARRAY(SELECT id FROM waiting))
        RETURNING 1
    ), all_of AS (
        SELECT 1 FROM slots UNION ALL SELECT 1 FROM named
    )
    SELECT count(*) INTO found_jobs FROM all_of;
    RETURN found_jobs;
END $$;
REVOKE ALL ON FUNCTION tenure.adopt_jobs(text, int) FROM PUBLIC;

-- Takes a queue's lanes away: nothing limits its jobs any more, and those that are held are released as the relay gets to
-- them. The trigger stays until `forget_lanes`, which waits for readers of the table, too.
CREATE FUNCTION tenure.remove_lanes(of text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
BEGIN
    LOCK TABLE tenure.lanes IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM tenure.lane_settings s WHERE s.queue = of AND s.ordered) THEN
        PERFORM tenure.place_anew(of, false);
    END IF;
    UPDATE tenure.lane_settings s
       SET running = NULL, rate = NULL, burst = NULL, queue_rate = NULL, queue_burst = NULL, turns = false,
           ordered = false, tokens = NULL, removed_at = clock_timestamp()
     WHERE s.queue = of AND s.removed_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE tenure.lanes l SET next_at = clock_timestamp(), running = NULL, weight = NULL WHERE l.queue = of;
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION tenure.remove_lanes(text) FROM PUBLIC;

CREATE FUNCTION tenure.forget_lanes(of text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '300ms' AS $$
BEGIN
    -- Lanes that come back wait for this row, and then create the trigger anew.
    PERFORM FROM tenure.lane_settings s WHERE s.queue = of AND s.removed_at IS NOT NULL FOR UPDATE;
    IF FOUND THEN
        EXECUTE format('DROP TRIGGER IF EXISTS %I ON tenure.jobs', replace(tenure.mark_of(of), 'mark_', 'lanes_'));
    END IF;
END $$;
REVOKE ALL ON FUNCTION tenure.forget_lanes(text) FROM PUBLIC;

-- Takes a unique key that lasts only while its job is queued or live, and returns the job that holds it: `new_id`, or an
-- older one. 'replace': as 'queued', and the older job gets the new payload and time.
-- The job's row stays locked until the transaction ends: a job that has not started by then will see what was committed.
-- `longest`: how long a job may be moved on after it was created.
-- SECURITY DEFINER: a producer changes jobs in this way alone. It may insert any row of job_keys, and call this with any
-- id; `lasting`, which it may not write, says that the key was taken here, for a job that did not exist yet. So it
-- reaches no job but those that were enqueued with such a key.
CREATE FUNCTION tenure.take_key(key_while text, of_scope text, of_key text, new_id uuid, new_payload jsonb,
                                due timestamptz, longest interval) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    holder uuid;
    old    tenure.jobs;
    until  timestamptz;
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
                    -- What earlier attempts did, they did for the old payload.
                    DELETE FROM tenure.effects e WHERE e.job_id = holder AND old.fencing_token > 0;
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
REVOKE ALL ON FUNCTION tenure.take_key(text, text, text, uuid, jsonb, timestamptz, interval) FROM PUBLIC;

-- The SQL surface of lanes and of their like, and what the roles of postgres/roles.sql need of them.

-- Removes the rows of lanes that have no job and no settings of their own; returns how many.
-- A bucket of tokens goes once it would be full again: a new one begins full. A call of tenure.admit that waits for such
-- a row passes the lane over; the wake of the job that it brings is still there.
-- SECURITY DEFINER: a worker may not delete a limit, nor the settings of a queue.
CREATE FUNCTION tenure.sweep_lanes(most bigint) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH empty AS MATERIALIZED (
        SELECT l.queue, l.lane
          FROM tenure.lanes l
          LEFT JOIN tenure.lane_settings s ON s.queue = l.queue
         WHERE l.turn IS NULL AND l.next_at IS NULL AND l.weight IS NULL AND l.running IS NULL
           AND (s.rate IS NULL OR l.tokens IS NULL
                OR l.tokens + s.rate * greatest(0, extract(epoch FROM statement_timestamp() - l.refilled_at)) >= s.burst)
           AND NOT EXISTS (SELECT FROM tenure.lane_jobs w
                            WHERE w.queue = l.queue AND w.lane = l.lane AND w.place IS NOT NULL)
           AND NOT EXISTS (SELECT FROM tenure.lane_slots t WHERE t.queue = l.queue AND t.lane = l.lane)
         ORDER BY l.queue, l.lane
         LIMIT most
           FOR UPDATE OF l SKIP LOCKED
    ), gone AS (
        DELETE FROM tenure.lanes l USING empty e WHERE l.queue = e.queue AND l.lane = e.lane RETURNING 1
    ), removed AS (
        -- Of a queue whose lanes were removed, once nothing of it is left.
        DELETE FROM tenure.lane_settings s
         WHERE s.removed_at IS NOT NULL
           -- While it is there, new jobs are held.
           AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = 'tenure.jobs'::regclass
                              AND t.tgname = replace(tenure.mark_of(s.queue), 'mark_', 'lanes_'))
           AND NOT EXISTS (SELECT FROM tenure.lanes l WHERE l.queue = s.queue)
           AND NOT EXISTS (SELECT FROM tenure.lane_jobs w WHERE w.queue = s.queue)
    )
    SELECT count(*) FROM gone
$$;
REVOKE ALL ON FUNCTION tenure.sweep_lanes(bigint) FROM PUBLIC;

-- What is wrong with the options that few jobs have: a message, and a hint. NULL: nothing.
CREATE FUNCTION tenure.fault_in_options(unique_key text, delay interval, lane text, priority numeric,
                                        not_after timestamptz, on_expiry text, replace text, longest_wait interval,
                                        unique_while_queued text, unique_while_live text) RETURNS text[]
LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ahead CONSTANT interval := interval '3650 days';
    keys  text[];
    bad   record;
BEGIN
    SELECT array_agg(k.name ORDER BY k.n)
      INTO keys
      FROM unnest('{unique_key,replace,unique_while_queued,unique_while_live}'::text[],
                  ARRAY[unique_key, replace, unique_while_queued, unique_while_live])
           WITH ORDINALITY AS k(name, key, n)
     WHERE k.key IS NOT NULL;
    SELECT k.name, k.key, octet_length(k.key) AS bytes
      INTO bad
      FROM unnest('{replace,unique_while_queued,unique_while_live}'::text[],
                  ARRAY[replace, unique_while_queued, unique_while_live]) AS k(name, key)
     WHERE NOT tenure.is_key(k.key)
     LIMIT 1;
    IF lane = '' OR octet_length(lane) > 256 OR NOT tenure.is_key(lane) THEN
        RETURN ARRAY[format('lane is %s (%s bytes), but must have 1 to 256 bytes and no control characters',
                            to_json(left(lane, 80)), octet_length(lane)),
                     'Hash a longer key, and escape other characters; leave it out for a job without a lane.'];
    ELSIF priority NOT BETWEEN -100 AND 100 OR priority <> trunc(priority) THEN
        RETURN ARRAY[format('priority is %s, but must be a whole number from -100 to 100', priority),
                     'The lower, the sooner within its lane; leave it out for 0.'];
    ELSIF NOT isfinite(not_after) OR not_after > statement_timestamp() + ahead THEN
        RETURN ARRAY[format('not_after is %s, but must be at most ten years ahead', not_after),
                     'Leave it out for a job that does not expire.'];
    ELSIF on_expiry NOT IN ('dead_letter', 'cancel') THEN
        RETURN ARRAY[format('on_expiry is %s, but must be dead_letter or cancel', to_json(left(on_expiry, 80))),
                     'It says what becomes of a job that was not started by not_after; without it, a dead letter.'];
    ELSIF bad.name IS NOT NULL THEN
        RETURN ARRAY[format('%s is %s (%s bytes), but must have 1 to 512 bytes and no control characters', bad.name,
                            to_json(left(bad.key, 80)), bad.bytes),
                     'Hash a longer key, and escape other characters; leave it out for a job without one.'];
    ELSIF cardinality(keys) > 1 THEN
        RETURN ARRAY[format('%s and %s are both given, but a job has at most one key', keys[1], keys[2]),
                     'Leave one of them out.'];
    ELSIF longest_wait IS NOT NULL AND replace IS NULL THEN
        RETURN ARRAY[format('longest_wait is %s, but must be left out without replace', longest_wait),
                     'It bounds how long replace may move a job on.'];
    ELSIF longest_wait < coalesce(delay, interval '0') OR longest_wait < interval '0' OR longest_wait > ahead THEN
        RETURN ARRAY[format('longest_wait is %s, but must be at least the delay, and at most ten years', longest_wait),
                     'Leave it out for ten times the delay.'];
    END IF;
    RETURN NULL;
END $$;

-- These options as `create_jobs` wants them, and as the library has them. NULL: none is given.
CREATE FUNCTION tenure.options_of(delay interval, lane text, priority numeric, not_after timestamptz, on_expiry text,
                                  replace text, longest_wait interval, unique_while_queued text,
                                  unique_while_live text) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT nullif(jsonb_strip_nulls(jsonb_build_object(
        'lane', lane, 'priority', priority, 'not_after', extract(epoch FROM not_after),
        'expires_as', CASE on_expiry WHEN 'cancel' THEN 'cancelled' END,
        'key_while', CASE WHEN replace IS NOT NULL THEN 'replace'
                          WHEN unique_while_queued IS NOT NULL THEN 'queued'
                          WHEN unique_while_live IS NOT NULL THEN 'live' END,
        'lasting_key', coalesce(replace, unique_while_queued, unique_while_live),
        'longest_s', CASE WHEN replace IS NOT NULL THEN extract(epoch FROM coalesce(longest_wait, delay * 10)) END
        )), '{}')
$$;

-- `insert_jobs` with the rarer options of each job, or NULL.
-- Each statement sees what is committed by then: the holder of a key that another transaction has just taken, too.
CREATE FUNCTION tenure.create_jobs(queues text[], kinds text[], payloads jsonb[], keys text[], due timestamptz[],
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
REVOKE ALL ON FUNCTION tenure.create_jobs(text[], text[], jsonb[], text[], timestamptz[], int[], text[], jsonb[])
  FROM PUBLIC;

-- For sessions and views that still call the older `enqueue`.
CREATE OR REPLACE FUNCTION tenure.insert_jobs(queues text[], kinds text[], payloads jsonb[], keys text[],
                                              due timestamptz[], attempts int[], traces text[]) RETURNS uuid[]
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT tenure.create_jobs(queues, kinds, payloads, keys, due, attempts, traces, NULL)
$$;

-- Two functions with defaults and one name would make the calls of today ambiguous, and a view, a default or another
-- function may depend on the older one: that one stays, under another name, with its rights. A statement that was
-- prepared before finds the newer one by its name.
ALTER FUNCTION tenure.enqueue(text, text, jsonb, text, timestamptz, interval, int, text) RENAME TO enqueue_8;
COMMENT ON FUNCTION tenure.enqueue_8(text, text, jsonb, text, timestamptz, interval, int, text) IS NULL;

CREATE FUNCTION tenure.enqueue(queue text, kind text, payload jsonb DEFAULT 'null', unique_key text DEFAULT NULL,
                               run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL,
                               max_attempts int DEFAULT NULL, trace_context text DEFAULT NULL,
                               lane text DEFAULT NULL, priority int DEFAULT NULL,
                               not_after timestamptz DEFAULT NULL, on_expiry text DEFAULT NULL,
                               replace text DEFAULT NULL, longest_wait interval DEFAULT NULL,
                               unique_while_queued text DEFAULT NULL, unique_while_live text DEFAULT NULL) RETURNS uuid
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
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'TN003', MESSAGE = fault[1], DETAIL = 'Nothing was enqueued.', HINT = fault[2];
    END IF;
    RETURN (tenure.create_jobs(ARRAY[queue], ARRAY[kind], ARRAY[coalesce(payload, 'null')], ARRAY[unique_key],
                               ARRAY[coalesce(run_at, clock_timestamp() + coalesce(delay, interval '0'))],
                               ARRAY[coalesce(max_attempts, 5)], ARRAY[tenure.valid_traceparent(trace_context)],
                               ARRAY[options]))[1];
END $$;
REVOKE ALL ON FUNCTION tenure.enqueue(text, text, jsonb, text, timestamptz, interval, int, text, text, int, timestamptz,
                                      text, text, interval, text, text) FROM PUBLIC;
COMMENT ON FUNCTION tenure.enqueue(text, text, jsonb, text, timestamptz, interval, int, text, text, int, timestamptz,
                                   text, text, interval, text, text) IS
'Enqueues a job in this transaction: it exists if and when that commits. Returns its id.
queue: 1 to 64 of A-Z a-z 0-9 _ -. kind: such names joined by dots. payload: at most tenure.payload_bytes_max bytes (256 KiB).
unique_key: of two jobs of a queue with one key only the first is created; the second call returns the first one''s id.
unique_while_queued, unique_while_live: so, too, but only until that job has started, or has ended.
replace: as unique_while_queued, and that job gets this payload, and this time; longest_wait: since its first enqueue.
run_at, or delay: when it is due, at most ten years ahead. max_attempts: 1 to 1000 (5). trace_context: a W3C traceparent.
lane: 1 to 256 bytes. priority: -100 to 100 within the lane, the lower, the sooner (0).
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
    'tenure.enqueue_8(text, text, jsonb, text, timestamptz, interval, int, text)',
    'tenure.enqueue(text, text, jsonb, text, timestamptz, interval, int, text, text, int, timestamptz, text, text,
                    interval, text, text)');
SELECT tenure.pass_rights(
    'tenure.insert_jobs(text[], text[], jsonb[], text[], timestamptz[], int[], text[])',
    'tenure.create_jobs(text[], text[], jsonb[], text[], timestamptz[], int[], text[], jsonb[])');
DROP FUNCTION tenure.pass_rights(regprocedure, regprocedure);

CREATE OR REPLACE FUNCTION tenure.enqueue_many(jobs jsonb) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    jobs_max CONSTANT int  := 10000;
    of_names CONSTANT text := 'A job has queue, kind, payload, unique_key, run_at, delay, max_attempts, trace_context, '
                              'lane, priority, not_after, on_expiry, replace, longest_wait, unique_while_queued and '
                              'unique_while_live, as the arguments of tenure.enqueue; only queue and kind are '
                              'required.';
    of_texts CONSTANT text := 'Write a delay as in "90 seconds", and a time as in "2030-01-31T12:00:00Z".';
    rarer    CONSTANT text[] := '{lane,priority,not_after,on_expiry,replace,longest_wait,unique_while_queued,'
                                'unique_while_live}';
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
            SELECT array_agg(tenure.options_of(o.delay, o.lane, o.priority, o.not_after, o.on_expiry, o.replace,
                                               o.longest_wait, o.unique_while_queued, o.unique_while_live) ORDER BY e.n)
              INTO options
              FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, n)
             CROSS JOIN LATERAL jsonb_to_record(e.job)
                   AS o(delay interval, lane text, priority numeric, not_after timestamptz, on_expiry text,
                        replace text, longest_wait interval, unique_while_queued text, unique_while_live text);
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
                    unique_while_live text)
         CROSS JOIN LATERAL (
             SELECT tenure.fault_in_options(o.unique_key, o.delay, o.lane, o.priority, o.not_after, o.on_expiry,
                                            o.replace, o.longest_wait, o.unique_while_queued,
                                            o.unique_while_live) AS fault) f
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

-- As before, and also takes a held job from its lane.
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
            DELETE FROM tenure.jobs j WHERE j.id = cancel.job;
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
            RETURN 'cancelled';
        ELSIF EXISTS (SELECT FROM tenure.job_history h WHERE h.id = cancel.job)
           OR EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = cancel.job) THEN
            RETURN 'finished';
        END IF;
        EXIT WHEN NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = cancel.job);
    END LOOP;
    RETURN 'not_found';
END $$;
