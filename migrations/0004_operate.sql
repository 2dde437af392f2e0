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
    ADD COLUMN purged_at    timestamptz;                    -- when retention last looked

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
