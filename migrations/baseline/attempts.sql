-- Attempts that have ended, and the effects that attempts remember.

-- Attempts that did not end their job, the last hundred of each. Those that did stand on the finished row.
CREATE TABLE tenure.job_executions (
    job_id        uuid        NOT NULL,                     -- as jobs.id; the job may have ended since
    fencing_token bigint      NOT NULL,                     -- the claim's
    attempt       int         NOT NULL,                     -- as it was counted while it ran
    claim_id      uuid        NOT NULL,                     -- as jobs.claim_id, of that claim
    worker_id     text        NOT NULL,                     -- who ran it, as jobs.worker_id
    started_at    timestamptz NOT NULL,                     -- when it was claimed
    finished_at   timestamptz NOT NULL,                     -- when its end, or its loss, was written
    -- 'failed' and 'lost' also of a dead letter that was redriven: its last attempt joins the others.
    outcome       text        NOT NULL CHECK (outcome IN ('retried', 'snoozed', 'failed', 'lost', 'released')),
    error         text,                                     -- NULL: it had none
    PRIMARY KEY (job_id, fencing_token)
);

-- What `once`, `step`, `sleep` and `event` remember of a job, for its later attempts.
CREATE TABLE tenure.effects (
    job_id        uuid        NOT NULL,                     -- as jobs.id
    -- The name of the effect, step or event. An event that came before its wait has a name that begins with the
    -- character 1, which no step can have: or one who knows the job's id alone could end the job by the name of a step.
    key           text        NOT NULL,
    fencing_token bigint      NOT NULL,                     -- of the attempt that wrote it; of an event, the job's
                                                            -- when it came
    result        jsonb       NOT NULL,                     -- JSON null: not written yet, or without a value
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),  -- the end of a step; when an event came
    -- NULL: an effect of `once`. 'step', 'sleep'; of events 'awaited' (the job waits for it), 'event' (it came) and
    -- 'late' (its time was over). No CHECK, so that a new word needs no scan of the table.
    step_kind     text,
    began_at      timestamptz,                              -- by the database's clock: of the step, the sleep or the
                                                            -- wait; when an event was signalled. NULL: `once`
    wakes_at      timestamptz,                              -- the end of a sleep, or of the wait for an event; NULL:
                                                            -- it has none
    PRIMARY KEY (job_id, key)
);
