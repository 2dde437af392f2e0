-- Jobs that have ended: the history of those that completed or were cancelled, and the dead letters.

-- Append-only, a partition a day; the row is also the record of the attempt that ended the job. The primary key makes a
-- job complete at most once. A completed job of a kind that keeps no history leaves no row.
CREATE TABLE tenure.job_history (
    id              uuid        NOT NULL,                   -- as jobs.id; its time decides the partition
    queue           text        NOT NULL,                   -- as jobs.queue
    kind            text        NOT NULL,                   -- as jobs.kind
    payload         jsonb       NOT NULL,                   -- as jobs.payload
    status          text        NOT NULL CHECK (status IN ('completed', 'cancelled')),  -- failed: in dead_letter_jobs
    attempt         int         NOT NULL,                   -- as jobs.attempt
    max_attempts    int         NOT NULL,                   -- as jobs.max_attempts
    fencing_token   bigint      NOT NULL,                   -- as jobs.fencing_token; 0: no worker ever claimed it
    claim_id        uuid,                                   -- NULL: cancelled while no worker ran it
    worker_id       text,                                   -- NULL: likewise
    created_at      timestamptz NOT NULL,                   -- as jobs.created_at
    scheduled_at    timestamptz NOT NULL,                   -- when it was due; of a job cancelled before that: its end
    started_at      timestamptz,                            -- of the attempt that ended the job; NULL: none did
    last_activity_at timestamptz,                           -- its last sign of life; NULL: likewise
    finished_at     timestamptz NOT NULL,                   -- when the end was written; retention counts from it
    stage           text,                                   -- the last report of that attempt
    progress        real,                                   -- percent
    message         text,                                   -- as jobs.message
    output          jsonb,                                  -- what the handler returned; NULL: nothing, or cancelled
    trace_context   text,                                   -- as jobs.trace_context
    last_error      text,                                   -- of an earlier attempt, or of the cancellation
    -- The transaction that wrote the end. ends.sql tells an end to its followers once every transaction before it has
    -- ended, because a later commit may have an earlier time. NULL: not known.
    ended_xid       xid8        DEFAULT pg_current_xact_id(),
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);

-- purge_cancelled: cancelled jobs may be kept for a shorter time than the completed ones of their day.
CREATE INDEX job_history_cancelled ON tenure.job_history (finished_at) WHERE status = 'cancelled';
-- ends.sql: the ends since a time. Rows are written in order of that time, so an entry for each 4 MB is enough, and
-- writing a row costs nothing.
CREATE INDEX job_history_by_end ON tenure.job_history USING brin (finished_at)
    WITH (pages_per_range = 512, autosummarize = on);

-- A missing partition must never stop a completion.
CREATE TABLE tenure.job_history_default PARTITION OF tenure.job_history DEFAULT;
-- Yesterday, today and a week ahead; the workers' scans create those of later days.
SELECT tenure.create_history_partitions(7);

-- A job that used up its attempts or never can succeed, or a submission that cannot be a job.
CREATE TABLE tenure.dead_letter_jobs (
    id                uuid        PRIMARY KEY,              -- as jobs.id
    queue             text        NOT NULL,                 -- as jobs.queue; '?': the subject of a refused submission
                                                            -- names none
    kind              text        NOT NULL,                 -- as jobs.kind; '?': likewise
    payload           jsonb,                                -- NULL for a refused submission
    raw_payload       bytea,                                -- the bytes of a refused submission; NULL for a job
    subject           text,                                 -- where a refused submission came from
    attempt           int         NOT NULL,                 -- of a refused submission 0
    max_attempts      int         NOT NULL,                 -- as jobs.max_attempts; of a refused submission 1
    fencing_token     bigint      NOT NULL,                 -- a redrive goes on from it
    claim_id          uuid,                                 -- the attempt that ended the job; NULL: none did
    worker_id         text,                                 -- as jobs.worker_id, of that attempt; NULL: likewise
    created_at        timestamptz NOT NULL,                 -- as jobs.created_at
    scheduled_at      timestamptz NOT NULL,                 -- when it was due; of a job that died before that: its end
    started_at        timestamptz,                          -- of the attempt that ended the job; NULL: none did
    last_activity_at  timestamptz,                          -- its last sign of life; NULL: likewise
    died_at           timestamptz NOT NULL,                 -- when it became a dead letter; retention counts from it
    stage             text,                                 -- the last report of that attempt
    progress          real,                                 -- percent
    message           text,                                 -- as jobs.message
    checkpoint        jsonb,                                -- the next attempt gets it, after a redrive
    trace_context     text,                                 -- as jobs.trace_context
    losses            int         NOT NULL DEFAULT 0,       -- attempts whose worker vanished
    dispatch          int         NOT NULL DEFAULT 0,       -- a redrive goes on from it
    last_outcome      text        CHECK (last_outcome IN ('failed', 'lost')),  -- NULL: no attempt ended the job
    last_error        text        NOT NULL,                 -- why the job died, or the submission was refused
    -- exhausted, permanent, lost, silent, interrupted, invalid_payload, invalid_output, refused, unknown_kind, expired,
    -- malformed, too_large: `Category` in src/job/attempt.rs says what each means.
    category          text        NOT NULL,
    execution_history jsonb       NOT NULL,                 -- its last hundred attempts, the oldest first
    ended_xid         xid8        DEFAULT pg_current_xact_id(),  -- as in the history
    lane              text,                                 -- a redriven job goes back to its lane; NULL: it had none
    priority          smallint,                             -- as jobs.priority
    CONSTRAINT a_job_or_raw_bytes CHECK ((payload IS NULL) <> (raw_payload IS NULL))
);
-- dead_letters.sql and dead_lately.sql read the latest, dead_ids.sql, start_redrive.sql and the purges the oldest;
-- ends.sql those since a time.
CREATE INDEX dead_letter_jobs_by_time ON tenure.dead_letter_jobs (died_at);
