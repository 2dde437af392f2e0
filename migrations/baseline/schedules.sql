-- Schedules: a job at each tick of a cron expression.

-- next_at is the only clock hand: it only moves forward, and tick.sql, which moves it, enqueues in the same statement.
CREATE TABLE tenure.schedules (
    name         text        PRIMARY KEY,                   -- by which programs put, pause and remove it
    cron         text        NOT NULL,                      -- five fields, or six, of which the first is the second; or
                                                            -- a word such as @daily
    time_zone    text        NOT NULL,                      -- of the IANA database, such as Europe/Berlin
    queue        text        NOT NULL,                      -- as jobs.queue, of its jobs
    kind         text        NOT NULL,                      -- as jobs.kind, of its jobs
    payload      jsonb       NOT NULL,                      -- as jobs.payload, before the tick's time is put in
    tick_field   text,                                      -- the payload's field that gets the tick's time; or NULL
    max_attempts int         NOT NULL,                      -- as jobs.max_attempts, of its jobs
    -- What becomes of ticks that no worker was there for: none of them, one job for all, or a job for each.
    missed       text        NOT NULL CHECK (missed IN ('skip', 'once', 'all')),
    paused_at    timestamptz,                               -- by a person, or as no tick comes any more; NULL: it runs
    next_at      timestamptz NOT NULL,                      -- the next tick; of a paused schedule, the one that it had
                                                            -- reached
    last_tick_at timestamptz,                               -- the tick of the last job; NULL, both: there was none
    last_job_id  uuid,                                      -- that job; it may have ended since
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),  -- when it was first put
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),  -- by put_schedule.sql; it names the version
    -- What a tick does while the job of the last one has not ended: allow, skip, queue or cancel.
    overlap      text        NOT NULL DEFAULT 'allow'
);
