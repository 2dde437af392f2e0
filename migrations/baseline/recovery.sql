-- Recovery: what tenure did when something went wrong, and what its scanners and relays must know of each other.

-- Every reset, takeover, release, republication and refused stale write.
CREATE TABLE tenure.recovery_events (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- in the order in which the events were noted
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),  -- when it was noted, by the database's clock
    -- reset: the attempt was lost, and its job was taken back. release: its worker gave the job back. refused_write: a
    -- worker that no longer owned the job tried to write. republished: no worker took its message in time.
    event          text        NOT NULL CHECK (event IN ('reset', 'release', 'refused_write', 'republished')),
    -- By which part of tenure: `RecoveryPath` in src/job/attempt.rs says what each is.
    path           text        NOT NULL CHECK (path IN ('reconcile', 'scanner', 'vanished', 'redelivery', 'relay',
                                                        'worker')),
    job_id         uuid        NOT NULL,                    -- as jobs.id; the job may have ended since
    fencing_token  bigint      NOT NULL,                    -- under which the job had run, or the write came
    owner_before   text,                                    -- worker id; NULL: no worker ran the job
    silence        interval,                                -- of the owner, when it was judged; republished: of its
                                                            -- message. NULL: nothing was judged by it
    reason         text        NOT NULL,                    -- for people; of a refused write, which write it was
    recovered_by   text        NOT NULL                     -- worker id
);
-- recoveries.sql: the events of one job. was_reset.sql: whether a claim was given up.
CREATE INDEX recovery_events_by_job ON tenure.recovery_events (job_id);
-- recovery_counts.sql: the events since a time. purge_events: the oldest.
CREATE INDEX recovery_events_by_time ON tenure.recovery_events (at);

-- What all scanners share, in one row: when one last looked, until when nothing may be reset, what the last found.
CREATE TABLE tenure.scanner_state (
    only_row           boolean     PRIMARY KEY DEFAULT true CHECK (only_row),  -- always true: there is one row
    last_scan_at       timestamptz,                         -- the end of the last scan; NULL, here and below: never
    server_started_at  timestamptz,                         -- of Postgres, as that scan saw it: a restart has a grace
    grace_until        timestamptz,                         -- no reset until then: no owner could write for a while
    breaker_since      timestamptz,                         -- too large a share looked stale at once; NULL: it does not
    measured_at        timestamptz,                         -- when the live jobs were last counted (measure.sql)
    relay_due_at       timestamptz,                         -- since when the relay owes the longest waiting publication
    dead               bigint,                              -- dead letters
    purged_at          timestamptz,                         -- when retention last began to look, or went on
    swept_at           timestamptz,                         -- and when it last came to its end
    purged_until       timestamptz,                         -- what finished before it may be gone; NULL: nothing is
    stream_until       timestamptz,                         -- NATS has answered: until then, a queue that has no row in
                                                            -- queue_stats has no submission
    -- What waits for a worker that is not there, by queue and kind: an array of a hundred entries at most, of the last
    -- scan. No table of its own: the workers' role may write this row. NULL: nothing. After unserved_until it says
    -- nothing.
    unserved           jsonb,
    unserved_until     timestamptz,                         -- until when it holds, if no other scan follows
    -- The last measurement that counted messages, too. While it differs from measured_at, a worker of an earlier
    -- release has measured since, and has removed the rows of queues that hold only submissions.
    stream_measured_at timestamptz,
    measuring_until    timestamptz,                         -- a process that is no worker measures until then, because
                                                            -- no worker does
    -- Messages whose subject names no valid queue or kind, as the last scan counted them, and one such subject. They
    -- hold as long as `unserved`. NULL: NATS did not answer.
    misnamed           bigint,
    misnamed_subject   text                                 -- of one such message; NULL: not known, or none
);
INSERT INTO tenure.scanner_state DEFAULT VALUES;

-- What the stream held at a moment of the database's time. A job published well before a mark whose last sequence the
-- consumer has passed has no message left. add_mark.sql thins them out: all of the last hour, few of the last week.
CREATE TABLE tenure.relay_marks (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- add_mark.sql thins them out by it
    marked_at      timestamptz NOT NULL,                    -- read before the stream was asked
    stream_created text        NOT NULL,                    -- names the stream: a new one counts from 1 again
    last_seq       bigint      NOT NULL                     -- its last sequence
);
-- passed_mark.sql: the latest mark that proves something. add_mark.sql: whether there is one from just before.
CREATE INDEX relay_marks_by_time ON tenure.relay_marks (marked_at);
