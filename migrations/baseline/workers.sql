-- Workers: the processes that run jobs, and which of them does what the fleet shares.

-- One row a worker process, from its start (register_worker.sql) until forget_workers.sql deletes it: when it stops, or
-- once it has been silent for long and owns no job. boot_id, pid_namespace, pid and pid_started_at prove a death on one
-- host; NULL: they are not known.
CREATE TABLE tenure.workers (
    worker_id      text        PRIMARY KEY,                 -- hostname-pid-random
    hostname       text        NOT NULL,                    -- the host's name, or TENURE_HOSTNAME; behind a gateway, as
                                                            -- the worker says
    pid            int         NOT NULL,                    -- of the process; behind a gateway, as the worker says
    boot_id        text,                                    -- of the host's kernel
    pid_namespace  text,                                    -- the one in which the pid counts
    pid_started_at text,                                    -- of the process: a pid may be given anew
    lock_file      text,                                    -- free once the process is gone; NULL: it has none
    probe_subject  text,                                    -- by which others find out whether it lives; NULL: it does
                                                            -- not reach itself there, and is not probed
    queues         text[]      NOT NULL,                    -- those that it serves
    kinds          text[],                                  -- NULL: every kind
    slots          int         NOT NULL,                    -- how many jobs it runs at once
    version        text        NOT NULL,                    -- of tenure; behind a gateway, of the worker's client
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),  -- when it registered
    last_seen_at   timestamptz NOT NULL DEFAULT clock_timestamp(),  -- its last renewal of this row
    suspected_at   timestamptz,                             -- when a probe first got no answer; a renewal by the
                                                            -- worker, or an answer, clears it
    probed_at      timestamptz,                             -- when a worker last probed this one
    renew_every    interval    NOT NULL DEFAULT '5 seconds',  -- how often it renews its row: by that it is judged
    unkept         text[],                                  -- its kinds that keep no history; '*': all that have no
                                                            -- handler of their own. NULL: none
    not_ready      text,                                    -- what it lacked at its last renewal, each with the reason,
                                                            -- as its /readyz says; NULL: nothing
    draining_at    timestamptz,                             -- since when it finishes its jobs and takes no other; NULL:
                                                            -- it does not drain
    language       text,                                    -- of a worker behind a gateway; NULL: it is tenure itself
    -- For each of `queues`, how many jobs one message may name. NULL: one. The worker is behind a gateway, or of an
    -- earlier release, and may not read such a message.
    jobs_per_message int[]
);
-- workers_of_host.sql: the earlier processes of a host, at a worker's start.
CREATE INDEX workers_by_host ON tenure.workers (hostname);

-- What the fleet does in common: publishing what is due, looking for vanished workers, scanning. One row a turn. The
-- worker that it names does that work until then; after that, whichever worker asks first. A turn only spares
-- statements: everything done under it may be done by two workers at once.
CREATE TABLE tenure.turns (
    turn      text        PRIMARY KEY,                      -- 'relay', 'vanished' or 'scan'
    worker_id text,                                         -- NULL: no worker has had it yet
    until     timestamptz NOT NULL                          -- its end; '-infinity': that worker gave the turn up
) WITH (fillfactor = 10);                                   -- written once a second, for ever: in place
INSERT INTO tenure.turns (turn, until) VALUES
    ('relay', statement_timestamp()), ('vanished', statement_timestamp()), ('scan', statement_timestamp());
