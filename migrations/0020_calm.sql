-- What a tick does while the job of the last one has not ended: allow, skip, queue or cancel.
ALTER TABLE tenure.schedules ADD COLUMN overlap text NOT NULL DEFAULT 'allow';

-- A redrive that stops by itself: a few jobs first, then the others at a rate, for as long as few of them fail.
--
-- The list is made when the redrive begins. The worker that has the relay's turn goes on with it once a second.
CREATE TABLE tenure.redrives (
    id          uuid             PRIMARY KEY DEFAULT gen_random_uuid(),
    started_at  timestamptz      NOT NULL DEFAULT clock_timestamp(),
    -- Which dead letters, as it was asked for.
    selection   jsonb            NOT NULL,
    canary      int              NOT NULL CHECK (canary >= 1),
    -- Jobs a second after the canary. NULL: as fast as they end well.
    rate        double precision CHECK (rate > 0),
    -- The share of failures at which it stops.
    stop_at     double precision NOT NULL CHECK (stop_at > 0 AND stop_at <= 1),
    jobs        bigint           NOT NULL,
    redriven    bigint           NOT NULL DEFAULT 0,
    completed   bigint           NOT NULL DEFAULT 0,
    -- Jobs that have failed an attempt since. One that completes with a later attempt counts, too.
    failed      bigint           NOT NULL DEFAULT 0,
    cancelled   bigint           NOT NULL DEFAULT 0,
    -- Jobs that wait for a time, an event or other jobs, without a failure so far.
    waiting     bigint           NOT NULL DEFAULT 0,
    -- Jobs that were no dead letters any more when their turn came.
    missing     bigint           NOT NULL DEFAULT 0,
    state       text             NOT NULL DEFAULT 'canary'
                CONSTRAINT redrive_state_is_known CHECK (state IN ('canary', 'running', 'done', 'stopped', 'cancelled')),
    reason      text,
    -- The rate counts from here.
    paced_from  timestamptz      NOT NULL DEFAULT clock_timestamp(),
    ended_at    timestamptz
);
CREATE INDEX redrives_open ON tenure.redrives (started_at) WHERE ended_at IS NULL;

CREATE TABLE tenure.redrive_jobs (
    redrive_id  uuid             NOT NULL REFERENCES tenure.redrives ON DELETE CASCADE,
    place       bigint           NOT NULL,
    job_id      uuid             NOT NULL,
    redriven_at timestamptz,
    outcome     text             CONSTRAINT redriven_as_is_known CHECK (outcome IN ('completed', 'failed', 'cancelled', 'waiting')),
    ended_at    timestamptz,
    PRIMARY KEY (redrive_id, place)
);
CREATE INDEX redrive_jobs_open ON tenure.redrive_jobs (redrive_id) WHERE redriven_at IS NOT NULL AND ended_at IS NULL;
CREATE INDEX redrive_jobs_ended ON tenure.redrive_jobs (redrive_id, ended_at) WHERE ended_at IS NOT NULL;

-- Dead jobs go back to the queue, under the same id. Returns their ids. A job without a row is not dead, or is a message
-- that was refused before it was a job.
-- Attempts and losses count from 0 again; the token and the dispatch go on, so that neither a write of an old attempt nor a
-- message of an old publication can pass for a new one. The attempt that ended the job joins the others in job_executions. A
-- member of a group is one again: its followers hear of its next end. A follower that has died before it started is held
-- again, while it has jobs to wait for.
-- It has the rights of its caller, so that everyone may call it, and an operator's role needs no new right.
CREATE FUNCTION tenure.redrive(ids uuid[]) RETURNS SETOF uuid
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
WITH picked AS MATERIALIZED (
    SELECT * FROM tenure.dead_letter_jobs
     WHERE id = ANY (ids) AND payload IS NOT NULL
     ORDER BY id
       FOR UPDATE
), audited AS (
    INSERT INTO tenure.job_executions (job_id, fencing_token, attempt, claim_id, worker_id, started_at,
           finished_at, outcome, error)
    SELECT id, fencing_token, attempt, claim_id, worker_id, started_at, died_at, last_outcome, last_error
      FROM picked
     WHERE claim_id IS NOT NULL
), gone AS (
    DELETE FROM tenure.dead_letter_jobs d USING picked WHERE d.id = picked.id
)
INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, fencing_token, created_at, scheduled_at,
       checkpoint, trace_context, last_error, dispatch, publish_at, clear_reason, lane, priority, group_id)
SELECT id, queue, kind, payload, max_attempts, fencing_token, created_at, due_at,
       checkpoint, trace_context, last_error, dispatch, due_at, 'redriven', lane, priority,
       coalesce((SELECT e.group_id FROM tenure.job_edges e WHERE e.before = picked.id LIMIT 1),
                (SELECT f.group_id FROM tenure.followers f WHERE f.job_id = picked.id))
  FROM picked
 CROSS JOIN LATERAL (SELECT tenure.redriven_at(picked.id, picked.fencing_token) AS due_at OFFSET 0) d
 WHERE (SELECT tenure.reopen_edges(ARRAY(SELECT id FROM picked)) IS NOT NULL)
RETURNING id
$$;

-- Whether a redrive is open. Every worker asks with its turns, also one whose role has not heard of these tables yet.
CREATE FUNCTION tenure.has_redrives() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (SELECT FROM tenure.redrives WHERE ended_at IS NULL)
$$;

-- Goes on with the redrives that are open: notes how the jobs have ended, and redrives the next ones, at most `most` of each
-- redrive. Returns those that have changed.
-- A job counts as failed once an attempt has failed: with retries it takes long to die again, and others would follow it.
-- How many jobs are out at once is bounded by what has completed: what breaks meanwhile costs the canary and a share of that.
-- SECURITY DEFINER: a worker may not delete dead letters; it goes on with what an operator has begun.
CREATE FUNCTION tenure.tend_redrives(most int)
RETURNS TABLE (redrive_id uuid, has_changed boolean, now_state text, queued bigint, redriven bigint, failed bigint,
               jobs bigint, why text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' SET jit = off AS $$
#variable_conflict use_column
DECLARE
    r       tenure.redrives;
    was     text;
    before  bigint;
    c       bigint;
    f       bigint;
    x       bigint;
    w       bigint;
    seen    bigint;
    bad     bigint;
    few     bigint;
    out_now bigint;
    room    bigint;
    span    double precision;
    places  bigint[];
    ids     uuid[];
    again   uuid[];
BEGIN
    FOR r IN SELECT * FROM tenure.redrives t WHERE t.ended_at IS NULL ORDER BY t.started_at FOR UPDATE SKIP LOCKED LOOP
        was := r.state;
        before := r.redriven;
        few := least(r.canary, r.jobs);
        -- What one redrive has to wait for holds up no other: it goes on with the next call.
        BEGIN
            -- 1. How the jobs have ended that are out.
            WITH ends AS (
                SELECT o.place,
                       CASE WHEN j.id IS NOT NULL THEN
                                 CASE WHEN j.attempt > CASE j.status WHEN 'processing' THEN 1 ELSE 0 END THEN 'failed'
                                      WHEN j.status = 'queued' AND j.scheduled_at > clock_timestamp()
                                           AND NOT EXISTS (SELECT FROM tenure.lane_jobs l WHERE l.job_id = j.id)
                                      THEN 'waiting' END
                            WHEN EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = o.job_id) THEN 'failed'
                            -- Without a row, its kind keeps no history of what completes.
                            ELSE coalesce((SELECT CASE WHEN h.status = 'cancelled' THEN 'cancelled'
                                                       WHEN h.attempt > 1 THEN 'failed' ELSE 'completed' END
                                             FROM tenure.job_history h WHERE h.id = o.job_id), 'completed') END AS outcome
                  FROM tenure.redrive_jobs o
                  LEFT JOIN tenure.jobs j ON j.id = o.job_id
                 WHERE o.redrive_id = r.id AND o.redriven_at IS NOT NULL AND o.ended_at IS NULL
            ), noted AS (
                UPDATE tenure.redrive_jobs o SET outcome = e.outcome, ended_at = clock_timestamp()
                  FROM ends e
                 WHERE o.redrive_id = r.id AND o.place = e.place AND e.outcome IS NOT NULL
                RETURNING o.outcome
            )
            SELECT count(*) FILTER (WHERE n.outcome = 'completed'), count(*) FILTER (WHERE n.outcome = 'failed'),
                   count(*) FILTER (WHERE n.outcome = 'cancelled'), count(*) FILTER (WHERE n.outcome = 'waiting')
              INTO c, f, x, w FROM noted n;
            r.completed := r.completed + c;
            r.failed := r.failed + f;
            r.cancelled := r.cancelled + x;
            r.waiting := r.waiting + w;
            out_now := r.redriven - r.completed - r.failed - r.cancelled - r.waiting;
            -- 2. Whether too many of the latest have failed.
            SELECT count(*), count(*) FILTER (WHERE l.outcome = 'failed') INTO seen, bad
              FROM (SELECT o.outcome FROM tenure.redrive_jobs o WHERE o.redrive_id = r.id AND o.ended_at IS NOT NULL
                       AND o.outcome <> 'waiting'
                     ORDER BY o.ended_at DESC LIMIT greatest(few, 100)) l;
            IF bad > 0 AND bad >= r.stop_at * greatest(seen, few) THEN
                r.state := 'stopped';
                r.reason := format('%s of the latest %s jobs failed', bad, greatest(seen, few));
            ELSE
                IF r.state = 'canary' AND out_now = 0 AND (r.redriven >= few OR r.redriven + r.missing >= r.jobs) THEN
                    r.state := 'running';
                    r.paced_from := clock_timestamp();
                END IF;
                -- 3. The next ones.
                IF r.state = 'canary' THEN
                    room := few - r.redriven;
                ELSE
                    room := r.canary + floor(r.stop_at * r.completed)::bigint - out_now;
                    IF r.rate IS NOT NULL THEN
                        -- What a gap has left out does not come all at once.
                        span := greatest(5, 1 / r.rate);
                        r.paced_from := greatest(r.paced_from, clock_timestamp() - span * interval '1 second');
                        room := least(room, floor(r.rate * extract(epoch FROM clock_timestamp() - r.paced_from)::float8)::bigint);
                    END IF;
                END IF;
                SELECT array_agg(n.place ORDER BY n.place), array_agg(n.job_id ORDER BY n.place) INTO places, ids
                  FROM (SELECT o.place, o.job_id FROM tenure.redrive_jobs o
                         WHERE o.redrive_id = r.id AND o.place > r.redriven + r.missing
                         ORDER BY o.place LIMIT greatest(least(room, most), 0)) n;
                IF ids IS NOT NULL THEN
                    again := ARRAY(SELECT tenure.redrive(ids));
                    UPDATE tenure.redrive_jobs o SET redriven_at = clock_timestamp()
                     WHERE o.redrive_id = r.id AND o.place = ANY (places) AND o.job_id = ANY (again);
                    r.redriven := r.redriven + cardinality(again);
                    r.missing := r.missing + cardinality(ids) - cardinality(again);
                    IF r.rate IS NOT NULL THEN
                        r.paced_from := r.paced_from + cardinality(again) / r.rate * interval '1 second';
                    END IF;
                ELSIF out_now = 0 AND r.redriven + r.missing >= r.jobs THEN
                    r.state := 'done';
                END IF;
            END IF;
            IF r.state IN ('done', 'stopped') THEN
                r.ended_at := clock_timestamp();
                DELETE FROM tenure.redrive_jobs o WHERE o.redrive_id = r.id;
            END IF;
            UPDATE tenure.redrives t
               SET redriven = r.redriven, completed = r.completed, failed = r.failed, cancelled = r.cancelled,
                   waiting = r.waiting, missing = r.missing, state = r.state, reason = r.reason, paced_from = r.paced_from, ended_at = r.ended_at
             WHERE t.id = r.id;
            IF r.state <> was OR r.redriven > before THEN
                redrive_id := r.id;
                has_changed := r.state <> was;
                now_state := r.state;
                queued := r.redriven - before;
                redriven := r.redriven;
                failed := r.failed;
                jobs := r.jobs;
                why := r.reason;
                RETURN NEXT;
            END IF;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            NULL;
        END;
    END LOOP;
END $$;
REVOKE ALL ON FUNCTION tenure.tend_redrives(int) FROM PUBLIC;
