-- tenure's schema. Migrations are append-only: once released, a file never changes.
--
-- Reading order: jobs (live), job_history (finished), dead_letter_jobs (failed), job_keys,
-- job_executions, recovery_events, effects, workers, queues, scanner_state, relay_marks, views.

-- Live jobs only: queued or processing. It stays small for ever, so its scans stay cheap.
-- A claim and a progress write touch no indexed column: both are HOT updates. Finished jobs move out.
CREATE TABLE tenure.jobs (
    id                  uuid        PRIMARY KEY,            -- UUID v7: ids are time
    queue               text        NOT NULL,
    kind                text        NOT NULL,
    payload             jsonb       NOT NULL,
    status              text        NOT NULL DEFAULT 'queued',
    attempt             int         NOT NULL DEFAULT 0,     -- +1 by every claim, given back by a snooze or a release
    max_attempts        int         NOT NULL,
    fencing_token       bigint      NOT NULL DEFAULT 0,     -- +1 by every claim; never reset, by anything
    claim_id            uuid,                               -- the claimer's nonce: names one claim even after an asynchronous failover
    worker_id           text,                               -- hostname-pid-random
    worker_host         text,                               -- the hostname alone: matched with =, never LIKE
    stale_after         interval,                           -- written by the claim, so that others judge this job by its own kind
    last_activity_at    timestamptz,                        -- the last sign of life; in no index
    scheduled_at        timestamptz NOT NULL,               -- a claim before this is refused
    started_at          timestamptz,
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    stage               text,
    progress            real,                               -- percent
    message             text,
    checkpoint          jsonb,
    cancel_requested_at timestamptz,
    trace_context       text,                               -- W3C traceparent of the enqueuer
    last_error          text,
    losses              int         NOT NULL DEFAULT 0,     -- attempts whose worker vanished: the first is retried at once
    -- Publishing. publish_at: no message is known; the relay publishes at this time.
    -- published_at: a message was published (or is being published) at this time.
    dispatch            int         NOT NULL DEFAULT 0,     -- +1 by every publication: part of Nats-Msg-Id
    publish_at          timestamptz,
    published_at        timestamptz,
    clear_reason        text,                               -- why the next ticket says "cleared"
    put_off_since       timestamptz,                        -- since when no worker that got it knew its kind

    CONSTRAINT status_is_live CHECK (status IN ('queued', 'processing')),
    CONSTRAINT progress_is_percent CHECK (progress BETWEEN 0 AND 100),
    CONSTRAINT attempts_are_bounded CHECK (attempt BETWEEN 0 AND max_attempts AND max_attempts >= 1),
    -- A processing job has an owner, a claim and a pulse; a queued one has none of them.
    CONSTRAINT processing_iff_owned CHECK (
        (status = 'processing') = (claim_id IS NOT NULL)
        AND (claim_id IS NULL) = (worker_id IS NULL)
        AND (claim_id IS NULL) = (worker_host IS NULL)
        AND (claim_id IS NULL) = (stale_after IS NULL)
        AND (claim_id IS NULL) = (last_activity_at IS NULL)
        AND (claim_id IS NULL) = (started_at IS NULL)),
    -- The relay can always tell what a queued job waits for: its publication, or its message.
    CONSTRAINT queued_is_relayed CHECK (status = 'processing' OR (publish_at IS NULL) <> (published_at IS NULL))
) WITH (fillfactor = 50,
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 20000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0);

-- The predicates never say status = '...': the planner would take such an index for a claim by
-- primary key, and walk all of it.
CREATE INDEX jobs_unpublished ON tenure.jobs (publish_at) WHERE publish_at IS NOT NULL;
CREATE INDEX jobs_published ON tenure.jobs (queue, published_at) WHERE published_at IS NOT NULL;

-- Finished jobs: completed or cancelled. Append-only; the row is also the record of the attempt that
-- ended the job. The primary key makes a job complete at most once.
CREATE TABLE tenure.job_history (
    id              uuid        NOT NULL,
    queue           text        NOT NULL,
    kind            text        NOT NULL,
    payload         jsonb       NOT NULL,
    status          text        NOT NULL CHECK (status IN ('completed', 'cancelled')),
    attempt         int         NOT NULL,
    max_attempts    int         NOT NULL,
    fencing_token   bigint      NOT NULL,
    claim_id        uuid,                                   -- NULL: cancelled while nobody ran it
    worker_id       text,
    created_at      timestamptz NOT NULL,
    scheduled_at    timestamptz NOT NULL,
    started_at      timestamptz,
    last_activity_at timestamptz,
    finished_at     timestamptz NOT NULL,
    stage           text,
    progress        real,
    message         text,
    output          jsonb,
    trace_context   text,
    last_error      text,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);

-- A missing partition must never stop a completion.
CREATE TABLE tenure.job_history_default PARTITION OF tenure.job_history DEFAULT;

-- A job that used up its attempts or never can succeed, or a submission that cannot be a job.
CREATE TABLE tenure.dead_letter_jobs (
    id                uuid        PRIMARY KEY,
    queue             text        NOT NULL,
    kind              text        NOT NULL,
    payload           jsonb,                                -- NULL for a refused submission
    raw_payload       bytea,                                -- the bytes of a refused submission
    subject           text,                                 -- where a refused submission came from
    attempt           int         NOT NULL,
    max_attempts      int         NOT NULL,
    fencing_token     bigint      NOT NULL,
    claim_id          uuid,                                 -- the attempt that ended the job; NULL: none did
    worker_id         text,
    created_at        timestamptz NOT NULL,
    scheduled_at      timestamptz NOT NULL,
    started_at        timestamptz,
    last_activity_at  timestamptz,
    died_at           timestamptz NOT NULL,
    stage             text,
    progress          real,
    message           text,
    checkpoint        jsonb,
    trace_context     text,
    losses            int         NOT NULL DEFAULT 0,
    dispatch          int         NOT NULL DEFAULT 0,
    last_outcome      text        CHECK (last_outcome IN ('failed', 'lost')),
    last_error        text        NOT NULL,
    category          text        NOT NULL,                 -- permanent, exhausted, lost, invalid_payload, malformed, too_large, unknown_kind
    execution_history jsonb       NOT NULL,
    CONSTRAINT a_job_or_raw_bytes CHECK ((payload IS NULL) <> (raw_payload IS NULL))
);
CREATE INDEX dead_letter_jobs_by_time ON tenure.dead_letter_jobs (died_at);

-- What makes an enqueue or a submission happen once. Outlives the job's row: only the statement that
-- inserted the key creates the job, or a redelivery after completion would create it anew.
CREATE TABLE tenure.job_keys (
    scope           text        NOT NULL,                   -- the queue of a unique key; '' for a submission's identity
    key             text        NOT NULL,
    job_id          uuid        NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Of a submission: where its message stands. The key may go only when the message has.
    stream_seq      bigint,
    stream_published_at timestamptz,
    PRIMARY KEY (scope, key)
);
CREATE INDEX job_keys_by_job ON tenure.job_keys (job_id);

-- Attempts that did not end their job. Those that did stand on the finished row.
CREATE TABLE tenure.job_executions (
    job_id        uuid        NOT NULL,
    fencing_token bigint      NOT NULL,
    attempt       int         NOT NULL,
    claim_id      uuid        NOT NULL,
    worker_id     text        NOT NULL,
    started_at    timestamptz NOT NULL,
    finished_at   timestamptz NOT NULL,
    outcome       text        NOT NULL CHECK (outcome IN ('retried', 'snoozed', 'failed', 'lost', 'released')),
    error         text,
    PRIMARY KEY (job_id, fencing_token)
);

-- Every reset, takeover, release and refused stale write: what tenure did when something went wrong.
CREATE TABLE tenure.recovery_events (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    event          text        NOT NULL CHECK (event IN ('reset', 'release', 'refused_write', 'republished')),
    path           text        NOT NULL CHECK (path IN ('reconcile', 'scanner', 'vanished', 'redelivery', 'relay', 'worker')),
    job_id         uuid        NOT NULL,
    fencing_token  bigint      NOT NULL,
    owner_before   text,
    silence        interval,                                -- of the owner, when it was judged
    reason         text        NOT NULL,
    recovered_by   text        NOT NULL
);
CREATE INDEX recovery_events_by_job ON tenure.recovery_events (job_id);
CREATE INDEX recovery_events_by_time ON tenure.recovery_events (at);

-- What `once` remembers: an effect of a job, the token that wrote it, and its result.
CREATE TABLE tenure.effects (
    job_id        uuid        NOT NULL,
    key           text        NOT NULL,
    fencing_token bigint      NOT NULL,
    result        jsonb       NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job_id, key)
);

-- One row a worker process. boot_id, pid_namespace, pid and pid_started_at prove a death on one host.
CREATE TABLE tenure.workers (
    worker_id      text        PRIMARY KEY,
    hostname       text        NOT NULL,
    pid            int         NOT NULL,
    boot_id        text,
    pid_namespace  text,
    pid_started_at text,
    lock_file      text,
    probe_subject  text,
    queues         text[]      NOT NULL,
    kinds          text[],                                  -- NULL: every kind
    slots          int         NOT NULL,
    version        text        NOT NULL,
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX workers_by_host ON tenure.workers (hostname);

CREATE TABLE tenure.queues (
    queue      text        PRIMARY KEY,
    paused_at  timestamptz,
    max_queued bigint      CHECK (max_queued > 0),
    max_running int        CHECK (max_running > 0)
);

-- What all scanners share: when one last looked, and until when nothing may be reset.
CREATE TABLE tenure.scanner_state (
    only_row          boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    last_scan_at      timestamptz,
    server_started_at timestamptz,
    grace_until       timestamptz,
    breaker_since     timestamptz                            -- too large a share looked stale at once
);
INSERT INTO tenure.scanner_state DEFAULT VALUES;

-- What the stream held at a moment of the database's time. A job published well before a mark whose
-- last sequence the consumer has passed has no message left.
CREATE TABLE tenure.relay_marks (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    marked_at      timestamptz NOT NULL,
    stream_created text        NOT NULL,
    last_seq       bigint      NOT NULL
);
CREATE INDEX relay_marks_by_time ON tenure.relay_marks (marked_at);

-- Daily partitions of job_history, by the time in the id. Returns how many were created.
-- SECURITY DEFINER: a worker need not own the tables.
CREATE FUNCTION tenure.create_history_partitions(days_ahead int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    day     date;
    name    text;
    low     uuid;
    high    uuid;
    created int := 0;
BEGIN
    FOR i IN -1..days_ahead LOOP
        day  := (statement_timestamp() AT TIME ZONE 'UTC')::date + i;
        name := 'job_history_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('tenure.' || name) IS NOT NULL;
        low  := rpad(lpad(to_hex((extract(epoch FROM day) * 1000)::bigint), 12, '0'), 32, '0')::uuid;
        high := rpad(lpad(to_hex((extract(epoch FROM day + 1) * 1000)::bigint), 12, '0'), 32, '0')::uuid;
        BEGIN
            EXECUTE format('CREATE TABLE tenure.%I PARTITION OF tenure.job_history FOR VALUES FROM (%L) TO (%L)',
                           name, low, high);
            created := created + 1;
        EXCEPTION
            -- Two at once; rows of a fast clock in the default partition; a long lock. All harmless:
            -- those rows stay in, or go to, the default partition.
            WHEN duplicate_table OR check_violation OR lock_not_available OR unique_violation THEN NULL;
        END;
    END LOOP;
    RETURN created;
END $$;
SELECT tenure.create_history_partitions(7);

-- For people and outside tests: every job, wherever its row stands.
CREATE VIEW tenure.all_jobs AS
SELECT id, queue, kind, payload, status, attempt, max_attempts, fencing_token, worker_id, created_at,
       scheduled_at, started_at, last_activity_at, NULL::timestamptz AS finished_at, stage, progress,
       message, NULL::jsonb AS output, last_error
  FROM tenure.jobs
UNION ALL
SELECT id, queue, kind, payload, status, attempt, max_attempts, fencing_token, worker_id, created_at,
       scheduled_at, started_at, last_activity_at, finished_at, stage, progress, message, output, last_error
  FROM tenure.job_history
UNION ALL
SELECT id, queue, kind, payload, 'failed', attempt, max_attempts, fencing_token, worker_id, created_at,
       scheduled_at, started_at, last_activity_at, died_at, stage, progress, message, NULL, last_error
  FROM tenure.dead_letter_jobs;

-- Every claim of every job; a running one has no outcome yet.
CREATE VIEW tenure.job_executions_all AS
SELECT id AS job_id, fencing_token, attempt, worker_id, started_at, NULL::timestamptz AS finished_at,
       NULL::text AS outcome, NULL::text AS error
  FROM tenure.jobs WHERE claim_id IS NOT NULL
UNION ALL
SELECT job_id, fencing_token, attempt, worker_id, started_at, finished_at, outcome, error
  FROM tenure.job_executions
UNION ALL
SELECT id, fencing_token, attempt, worker_id, started_at, finished_at, status,
       CASE WHEN status = 'cancelled' THEN last_error END
  FROM tenure.job_history WHERE claim_id IS NOT NULL
UNION ALL
SELECT id, fencing_token, attempt, worker_id, started_at, died_at, last_outcome, last_error
  FROM tenure.dead_letter_jobs WHERE claim_id IS NOT NULL;
