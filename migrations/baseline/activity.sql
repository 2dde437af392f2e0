-- Activity: what was done in each minute, by queue, for the dashboard's rates.

-- Every few seconds each worker adds what it has done since (report.sql). That costs the same at any load, and a rate
-- needs no look into the history. For people, not for accounts: a worker that is killed takes its last seconds along.
-- thin_activity.sql adds minutes up after 75 minutes, and deletes after eight days.
CREATE TABLE tenure.activity (
    minute    timestamptz NOT NULL,                         -- its beginning; of earlier counts that of a quarter of an
                                                            -- hour, or of two hours
    queue     text        NOT NULL,                         -- as jobs.queue
    claimed   bigint      NOT NULL,                         -- jobs claimed
    completed bigint      NOT NULL,                         -- attempts that ended so, as the next five
    retried   bigint      NOT NULL,                         -- failed and charged; the job was queued again
    snoozed   bigint      NOT NULL,                         -- not charged; it goes on later: a snooze, a sleep, a wait
    failed    bigint      NOT NULL,                         -- the job is a dead letter since
    cancelled bigint      NOT NULL,                         -- the job was cancelled, or its handler cancelled it
    released  bigint      NOT NULL,                         -- not charged; the worker gave the job back, such as at a
                                                            -- stop or in an outage
    -- 24 numbers each: the i-th counts those of up to 2^(i-1) ms that the ones before do not, the last all longer ones.
    waited    bigint[]    NOT NULL,                         -- claims, by how long the job had been due
    ran       bigint[]    NOT NULL,                         -- attempts, by how long they ran
    unkept    bigint      NOT NULL DEFAULT 0,               -- the completed ones that left no row in the history, of
                                                            -- which figures estimated from the history know nothing
    PRIMARY KEY (minute, queue)
);
