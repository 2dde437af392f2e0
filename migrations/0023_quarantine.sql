-- Quarantine: while most attempts of a kind fail, its jobs wait, and one of them at a time is tried.
--
-- A worker that claims a job of a kind in quarantine snoozes it, which charges no attempt. So every rule of a claim and of
-- an end holds for it as for any job: lanes, limits, fences, cancellation.
CREATE TABLE tenure.quarantines (
    kind           text             PRIMARY KEY CHECK (length(kind) BETWEEN 1 AND 200),
    -- A quarantine begins once at least `attempts` attempts have ended within the time `within`, and more than this share
    -- of them has failed.
    share          double precision NOT NULL CHECK (share > 0 AND share < 1),
    attempts       int              NOT NULL CHECK (attempts >= 1),
    within         interval         NOT NULL CHECK (within > '0'),
    probe_every    interval         NOT NULL CHECK (probe_every > '0'),
    -- NULL: the kind is watched, and its jobs run.
    began_at       timestamptz,
    -- The attempts at which it began.
    ended          bigint,
    failed         bigint,
    -- Attempts that ended before this time do not count: the rule was made then, or a quarantine ended.
    counted_from   timestamptz      NOT NULL DEFAULT clock_timestamp(),
    -- The job that is tried, and under which token. NULL: none is.
    probe_job      uuid,
    probe_token    bigint,
    -- Whether the job leaves no row once it has completed.
    probe_keeps_nothing boolean      NOT NULL DEFAULT false,
    probes         bigint           NOT NULL DEFAULT 0,
    last_probe     text             CONSTRAINT probe_ends_as_known CHECK (last_probe IN ('completed', 'failed', 'undecided')),
    next_probe_at  timestamptz,
    -- When a waiting job was last called, for a probe that was due.
    called_at      timestamptz,
    -- Since when the kind is watched no more. The row stays for a while: it has a list of jobs to call.
    removed_at     timestamptz
);

-- How many attempts of a watched kind have ended, in sixtieths of the rule's time. Every worker adds its own.
CREATE TABLE tenure.quarantine_counts (
    kind   text        NOT NULL,
    at     timestamptz NOT NULL,
    ended  bigint      NOT NULL,
    failed bigint      NOT NULL,
    PRIMARY KEY (kind, at)
);

-- The jobs that wait for the end of a quarantine: to call them then. A job that is missing here waits out its time.
CREATE TABLE tenure.quarantined_jobs (
    kind   text NOT NULL,
    job_id uuid NOT NULL,
    PRIMARY KEY (kind, job_id)
);

-- Whether a kind is watched. Every worker asks with its turns, also one whose role has not heard of these tables yet.
CREATE FUNCTION tenure.has_quarantines() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (SELECT FROM tenure.quarantines
                WHERE removed_at IS NULL OR removed_at > statement_timestamp() - interval '1 minute')
$$;
