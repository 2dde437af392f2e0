-- For whoever is on call: limits of queues, schedules, what the last scan counted, and retention.

-- Slots of a queue with max_running. A slot is taken while the job that it names runs under the token that it
-- names: whatever ends that attempt frees it, and no statement need know of it.
CREATE TABLE tenure.queue_slots (
    queue         text   NOT NULL,
    slot          int    NOT NULL,
    job_id        uuid,
    fencing_token bigint,
    PRIMARY KEY (queue, slot)
);

-- What the last scan counted: every worker shows the same figures, and none has to count for itself.
CREATE TABLE tenure.queue_stats (
    queue         text        PRIMARY KEY,
    due           bigint      NOT NULL,                     -- queued, and nothing but a worker is missing
    scheduled     bigint      NOT NULL,                     -- queued for later
    processing    bigint      NOT NULL,
    oldest_due_at timestamptz                               -- since when the longest waiting of the due ones is due
);
ALTER TABLE tenure.scanner_state
    ADD COLUMN measured_at  timestamptz,
    ADD COLUMN relay_due_at timestamptz,                    -- since when the relay owes the longest waiting publication
    ADD COLUMN dead         bigint,
    ADD COLUMN purged_at    timestamptz,                    -- when retention last began to look
    ADD COLUMN swept_at     timestamptz;                    -- and when it last came to its end

-- A job at each tick of a cron expression. next_at is the only clock hand: it only moves forward, and whoever moves
-- it enqueues, in the same statement.
CREATE TABLE tenure.schedules (
    name         text        PRIMARY KEY,
    cron         text        NOT NULL,
    time_zone    text        NOT NULL,
    queue        text        NOT NULL,
    kind         text        NOT NULL,
    payload      jsonb       NOT NULL,
    tick_field   text,                                      -- the payload's field that gets the time of the tick
    max_attempts int         NOT NULL,
    missed       text        NOT NULL CHECK (missed IN ('skip', 'once', 'all')),
    paused_at    timestamptz,
    next_at      timestamptz NOT NULL,
    last_tick_at timestamptz,
    last_job_id  uuid,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Retention. A worker may not delete what has happened; these functions may, and only what is old enough, a bounded
-- step a call. SECURITY DEFINER: a worker need not own the tables. An age that is NULL is for ever.
ALTER TABLE tenure.scanner_state ADD COLUMN purged_until timestamptz;  -- what finished before it may be gone
CREATE INDEX job_history_cancelled ON tenure.job_history (finished_at) WHERE status = 'cancelled';

-- When the job of a key ended, if that was long after the key was made: the job itself leaves before its key.
ALTER TABLE tenure.job_keys ADD COLUMN ended_at timestamptz;

-- The least id of a moment.
CREATE FUNCTION tenure.id_of_time(moment timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT rpad(lpad(to_hex(greatest(0, floor(extract(epoch FROM moment) * 1000))::bigint), 12, '0'), 32, '0')::uuid
$$;

CREATE FUNCTION tenure.check_age(age interval) RETURNS interval
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF age < interval '1 hour' THEN
        RAISE EXCEPTION 'what is kept for less than an hour (%) is not purged', age USING ERRCODE = '22023';
    END IF;
    RETURN age;
END $$;

-- One day of the history at most: the oldest whose every job is old enough. Nobody but late completions of jobs of that
-- day waits for it, and it waits for nobody: it gives up after 100 ms, and the next sweep tries again.
CREATE FUNCTION tenure.purge_day(keep_completed interval, keep_cancelled interval)
RETURNS TABLE (completed bigint, cancelled bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    day  text;
    kept boolean;
BEGIN
    IF tenure.check_age(keep_completed) IS NULL THEN
        RETURN;
    END IF;
    PERFORM tenure.check_age(keep_cancelled);
    FOR day IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'tenure.job_history'::regclass AND c.relname ~ '^job_history_[0-9]{8}$'
         ORDER BY c.relname
    LOOP
        -- Those of today and yesterday are made anew as soon as they are missed.
        EXIT WHEN (to_date(right(day, 8), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC'
                  > least(statement_timestamp() - keep_completed,
                          date_trunc('day', statement_timestamp(), 'UTC') - interval '1 day');
        EXECUTE format(
            'SELECT EXISTS (SELECT FROM tenure.%I WHERE NOT coalesce(finished_at < statement_timestamp()
                                 - CASE status WHEN ''completed'' THEN $1 ELSE $2 END, false))', day)
           INTO kept USING keep_completed, keep_cancelled;
        CONTINUE WHEN kept;
        EXECUTE format(
            'UPDATE tenure.job_keys k SET ended_at = h.finished_at FROM tenure.%I h
              WHERE k.job_id = h.id AND h.finished_at > h.created_at + interval ''1 hour''', day);
        BEGIN
            -- And again under the lock: a job that completes in between would be lost. It waits, and then finds no such
            -- day. The drop locks the whole history, for a moment; whoever reads it for long has the drop give up.
            EXECUTE format('LOCK TABLE tenure.%I IN SHARE ROW EXCLUSIVE MODE', day);
            EXECUTE format(
                'SELECT count(*) FILTER (WHERE status = ''completed''), count(*) FILTER (WHERE status = ''cancelled''),
                        coalesce(bool_or(NOT coalesce(finished_at < statement_timestamp()
                                 - CASE status WHEN ''completed'' THEN $1 ELSE $2 END, false)), false)
                   FROM tenure.%I', day)
               INTO completed, cancelled, kept USING keep_completed, keep_cancelled;
            IF NOT kept THEN
                EXECUTE format('DROP TABLE tenure.%I', day);
                RETURN NEXT;
                RETURN;
            END IF;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN RETURN;
        END;
    END LOOP;
END $$;

-- What stands in days that cannot go yet, or in none: so many rows after this id, of days that are old enough as a
-- whole. Returns where it has come to; NULL: to the end.
CREATE FUNCTION tenure.purge_rows(keep_completed interval, keep_cancelled interval, after uuid, step int)
RETURNS TABLE (completed bigint, cancelled bigint, last uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM tenure.check_age(keep_completed), tenure.check_age(keep_cancelled);
    RETURN QUERY
    WITH part AS MATERIALIZED (
        SELECT h.id, h.status, h.finished_at FROM tenure.job_history h
         WHERE h.id > after
           AND h.id < tenure.id_of_time(date_trunc('day', statement_timestamp() - keep_completed, 'UTC'))
         ORDER BY h.id LIMIT step
    ), gone AS (
        DELETE FROM tenure.job_history h USING part s
         WHERE h.id = s.id
           AND s.finished_at < statement_timestamp()
                               - CASE s.status WHEN 'completed' THEN keep_completed ELSE keep_cancelled END
        RETURNING h.id, h.status, h.created_at, h.finished_at
    ), ended AS (
        UPDATE tenure.job_keys k SET ended_at = g.finished_at FROM gone g
         WHERE k.job_id = g.id AND g.finished_at > g.created_at + interval '1 hour'
    )
    SELECT count(*) FILTER (WHERE g.status = 'completed'), count(*) FILTER (WHERE g.status = 'cancelled'),
           (SELECT s.id FROM part s ORDER BY s.id DESC LIMIT 1)
      FROM gone g;
END $$;

CREATE FUNCTION tenure.purge_cancelled(keep interval, step int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone bigint;
BEGIN
    WITH left_us AS (
        DELETE FROM tenure.job_history
         WHERE id IN (SELECT id FROM tenure.job_history
                       WHERE status = 'cancelled' AND finished_at < statement_timestamp() - tenure.check_age(keep)
                       ORDER BY finished_at LIMIT step)
           AND status = 'cancelled'
        RETURNING id, created_at, finished_at
    ), ended AS (
        UPDATE tenure.job_keys k SET ended_at = l.finished_at FROM left_us l
         WHERE k.job_id = l.id AND l.finished_at > l.created_at + interval '1 hour'
    )
    SELECT count(*) INTO gone FROM left_us;
    RETURN gone;
END $$;

CREATE FUNCTION tenure.purge_dead(keep interval, step int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone bigint;
BEGIN
    WITH left_us AS (
        DELETE FROM tenure.dead_letter_jobs
         WHERE id IN (SELECT id FROM tenure.dead_letter_jobs
                       WHERE died_at < statement_timestamp() - tenure.check_age(keep)
                       ORDER BY died_at LIMIT step FOR UPDATE SKIP LOCKED)
        RETURNING id, died_at
    ), ended AS (
        UPDATE tenure.job_keys k SET ended_at = l.died_at FROM left_us l WHERE k.job_id = l.id
    )
    SELECT count(*) INTO gone FROM left_us;
    RETURN gone;
END $$;

-- What is remembered of jobs that are gone: their attempts and effects, so many jobs after this id.
CREATE FUNCTION tenure.purge_traces(after uuid, step int) RETURNS TABLE (gone bigint, last uuid)
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
                     WHERE x.job_id > after AND x.job_id < (SELECT id FROM horizon) ORDER BY x.job_id LIMIT step) f) t
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
    )
    SELECT (SELECT count(*) FROM orphans), (SELECT t.job_id FROM traced t ORDER BY t.job_id DESC LIMIT 1);
END $$;

-- Keys of jobs that are neither live nor dead, and ended so long ago. A submission's identity only once its message has
-- left the stream, whose first sequence is given (NULL: not known): until then it may be delivered again.
CREATE FUNCTION tenure.purge_keys(keep interval, first_seq bigint, after uuid, step int)
RETURNS TABLE (gone bigint, last uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM tenure.check_age(keep);
    RETURN QUERY
    WITH part AS MATERIALIZED (
        SELECT k.scope, k.key, k.job_id, coalesce(k.ended_at, k.created_at) AS ended_at, k.stream_seq
          FROM tenure.job_keys k
         WHERE k.job_id > after AND k.job_id < tenure.id_of_time(statement_timestamp() - keep)
         ORDER BY k.job_id LIMIT step
    ), purged AS (
        DELETE FROM tenure.job_keys k USING part s
         WHERE k.scope = s.scope AND k.key = s.key AND k.job_id = s.job_id
           AND s.ended_at < statement_timestamp() - keep
           AND (s.stream_seq IS NULL OR s.stream_seq < first_seq)
           AND NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = s.job_id)
           AND NOT EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = s.job_id)
           AND NOT EXISTS (SELECT FROM tenure.job_history h
                            WHERE h.id = s.job_id AND h.finished_at >= statement_timestamp() - keep)
        RETURNING k.job_id
    )
    SELECT (SELECT count(*) FROM purged), (SELECT s.job_id FROM part s ORDER BY s.job_id DESC LIMIT 1);
END $$;

CREATE FUNCTION tenure.purge_events(keep interval, step int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone bigint;
BEGIN
    DELETE FROM tenure.recovery_events
     WHERE id IN (SELECT id FROM tenure.recovery_events
                   WHERE at < statement_timestamp() - tenure.check_age(keep) ORDER BY at LIMIT step);
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;

-- Who may is said by postgres/roles.sql.
REVOKE ALL ON FUNCTION tenure.purge_day(interval, interval), tenure.purge_rows(interval, interval, uuid, int),
       tenure.purge_cancelled(interval, int), tenure.purge_dead(interval, int), tenure.purge_traces(uuid, int),
       tenure.purge_keys(interval, bigint, uuid, int), tenure.purge_events(interval, int) FROM PUBLIC;
