-- Who has done what to how many jobs: a row an act, written by the statement that acts.
--
-- An act that changes nothing has no row. What tenure does by itself (a retry, a recovery, a tick of a schedule) is no act.
CREATE TABLE tenure.audit (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The login role and the address of the connection. Its program cannot choose them.
    role     text        NOT NULL DEFAULT session_user,
    address  text        DEFAULT host(inet_client_addr()),
    -- By what: 'command line', 'dashboard', 'api', 'library', 'sql', or a word of the program's own.
    via      text        NOT NULL,
    -- Who, as the program says.
    actor    text,
    act      text        NOT NULL,
    -- NULL: jobs of several queues.
    queue    text,
    -- The job, if it is one; the lane, the schedule or the redrive.
    subject  text,
    jobs     bigint,
    details  jsonb,
    CONSTRAINT notes_are_short CHECK (length(via) <= 200 AND length(actor) <= 200 AND length(act) <= 64
                                      AND length(subject) <= 1000)
);
CREATE INDEX audit_by_at ON tenure.audit (at);
CREATE INDEX audit_by_subject ON tenure.audit (subject) WHERE subject IS NOT NULL;

-- Each role that acts adds rows, and can neither change nor delete any. postgres/roles.sql grants it to fewer; until it is
-- run again, the acts of the roles that it has made go on.
GRANT INSERT (via, actor, act, queue, subject, jobs, details) ON tenure.audit TO PUBLIC;

-- Keeps what is younger than 30 days, so that a worker's password does not hide what was done with it.
CREATE FUNCTION tenure.purge_audit(keep interval, step int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone bigint;
BEGIN
    DELETE FROM tenure.audit
     WHERE id IN (SELECT id FROM tenure.audit
                   WHERE at < statement_timestamp() - greatest(tenure.check_age(keep), interval '30 days')
                   ORDER BY at LIMIT step);
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;
REVOKE ALL ON FUNCTION tenure.purge_audit(interval, int) FROM PUBLIC;

-- As before; and the cancellation is an act.
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
            RETURN 'finished';
        END IF;
        EXIT WHEN NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = cancel.job);
    END LOOP;
    RETURN 'not_found';
END $$;
