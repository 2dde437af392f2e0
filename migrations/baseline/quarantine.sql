-- Quarantine: while most attempts of a kind fail, its jobs wait, and one of them at a time is tried.
--
-- A worker that claims a job of a kind in quarantine snoozes it, which charges no attempt. So every rule of a claim and
-- of an end holds for it as for any job: lanes, limits, fences, cancellation.

-- The rule of each watched kind (put_quarantine.sql), and its quarantine (tend_quarantines.sql).
CREATE TABLE tenure.quarantines (
    kind           text             PRIMARY KEY CHECK (length(kind) BETWEEN 1 AND 200),  -- as jobs.kind, of any queue
    -- A quarantine begins once at least `attempts` attempts have ended within the time `within`, and more than this
    -- share of them has failed.
    share          double precision NOT NULL CHECK (share > 0 AND share < 1),
    attempts       int              NOT NULL CHECK (attempts >= 1),  -- how many must have ended, at least
    within         interval         NOT NULL CHECK (within > '0'),  -- the time in which they have ended
    probe_every    interval         NOT NULL CHECK (probe_every > '0'),  -- from the end of one probe to the next
    began_at       timestamptz,                             -- NULL: the kind is watched, and its jobs run
    ended          bigint,                                  -- the attempts at which the last quarantine began;
    failed         bigint,                                  -- NULL, both: none has begun
    -- Attempts that ended before this time do not count: the rule was made then, or a quarantine ended.
    counted_from   timestamptz      NOT NULL DEFAULT clock_timestamp(),
    probe_job      uuid,                                    -- the job that is tried, and under which token; NULL, both:
    probe_token    bigint,                                  -- none is
    probe_keeps_nothing boolean     NOT NULL DEFAULT false, -- whether the job leaves no row once it has completed
    probes         bigint           NOT NULL DEFAULT 0,     -- of this quarantine
    -- How the last one ended; NULL: none has.
    last_probe     text             CONSTRAINT probe_ends_as_known
                                    CHECK (last_probe IN ('completed', 'failed', 'undecided')),
    next_probe_at  timestamptz,                             -- NULL: a probe is under way, or there is no quarantine
    called_at      timestamptz,                             -- when a waiting job was last called for a due probe
    -- Since when the kind is watched no more. The row stays for a while: it has a list of jobs to call.
    removed_at     timestamptz
);

-- How many attempts of a watched kind have ended, in sixtieths of the rule's time: report_quarantine.sql of
-- every worker adds its own.
CREATE TABLE tenure.quarantine_counts (
    kind   text        NOT NULL,                            -- as jobs.kind
    at     timestamptz NOT NULL,                            -- the beginning of the sixtieth
    ended  bigint      NOT NULL,                            -- those that have completed or failed; others do not count
    failed bigint      NOT NULL,                            -- of these
    PRIMARY KEY (kind, at)
);

-- The jobs that wait for the end of a quarantine: to call them then. A job that is missing here waits out its time.
CREATE TABLE tenure.quarantined_jobs (
    kind   text NOT NULL,                                   -- as jobs.kind
    job_id uuid NOT NULL,                                   -- as jobs.id; a worker has snoozed the job
    PRIMARY KEY (kind, job_id)
);
