-- For the dashboard.

-- What was done in each minute, by queue: every worker adds what it did in the last seconds. The same price whatever the
-- load, and nobody has to read the history for a rate. For people, not for accounts: a worker that is killed takes its
-- last seconds with it.
CREATE TABLE tenure.activity (
    minute    timestamptz NOT NULL,
    queue     text        NOT NULL,
    claimed   bigint      NOT NULL,
    completed bigint      NOT NULL,
    retried   bigint      NOT NULL,
    snoozed   bigint      NOT NULL,
    failed    bigint      NOT NULL,
    cancelled bigint      NOT NULL,
    released  bigint      NOT NULL,
    waited    bigint[]    NOT NULL,                         -- claims by how long the job had been due: the i-th
    ran       bigint[]    NOT NULL,                         -- attempts by how long they ran: counts those up to 2^(i-1) ms
    PRIMARY KEY (minute, queue)
);

-- Of a migration that takes something away: programs whose newest migration is an older one do not work any more.
ALTER TABLE tenure.migrations ADD COLUMN breaks_before bigint;
