-- Jobs that live: a row is queued or processing, and leaves this table when its job ends.

-- The table stays small for ever, so its scans stay cheap. A claim and a progress write touch no indexed column: both
-- are HOT updates, for which half of each page is free.
CREATE TABLE tenure.jobs (
    id                  uuid        PRIMARY KEY,            -- UUID v7: ids are time. Of a submission: by its message
    queue               text        NOT NULL,               -- whose workers run it; it need not be in tenure.queues
    kind                text        NOT NULL,               -- which handler runs it
    payload             jsonb       NOT NULL,               -- what the handler gets
    status              text        NOT NULL DEFAULT 'queued',  -- 'queued' or 'processing': see live_job
    -- +1 by every claim. A snooze and a release give it back, and so does a loss that another job of its batch may
    -- have caused.
    attempt             int         NOT NULL DEFAULT 0,
    max_attempts        int         NOT NULL,               -- 1 to 1000: a failure or a loss of this one ends the job
    fencing_token       bigint      NOT NULL DEFAULT 0,     -- +1 by every claim; never reset, by anything
    -- From here to last_activity_at, and started_at: the claim. All are NULL while no worker runs the job.
    claim_id            uuid,                               -- the claim's nonce: names one claim even after an
                                                            -- asynchronous failover, when a token may come twice
    worker_id           text,                               -- hostname-pid-random
    worker_host         text,                               -- the hostname alone: matched with =, never LIKE
    stale_after         interval,                           -- written by the claim, so that others judge this job by
                                                            -- its own kind
    last_activity_at    timestamptz,                        -- the last sign of life of the attempt; in no index
    -- A claim before this is refused. From the year 9998 on the time never comes: the job is held, by its lane, by the
    -- jobs that it follows, or by what it waits for.
    scheduled_at        timestamptz NOT NULL,
    started_at          timestamptz,                        -- of the attempt that runs
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),  -- when it was enqueued, or its submission was
                                                                         -- published; a redrive does not change it
    stage               text,                               -- what the attempt has reported: each claim clears it
    progress            real,                               -- percent, 0 to 100; NULL: not reported
    message             text,                               -- likewise, a text for people; NULL: not reported
    checkpoint          jsonb,                              -- of the last attempt that wrote one; the next one gets it
    cancel_requested_at timestamptz,                        -- every way back to the queue then ends in 'cancelled'
    trace_context       text,                               -- W3C traceparent of the enqueuer; NULL: none
    last_error          text,                               -- of the last attempt that failed; NULL: none has
    losses              int         NOT NULL DEFAULT 0,     -- attempts whose worker vanished: after the first, the
                                                            -- retry is at once
    -- Publishing. publish_at: no message is known; the relay publishes at this time.
    -- published_at: a message was published (or is being published) at this time; ahead of now if it is put off.
    dispatch            int         NOT NULL DEFAULT 0,     -- +1 by every publication: part of Nats-Msg-Id
    publish_at          timestamptz,                        -- NULL: published_at is set. From the year 9998 on: held
    published_at        timestamptz,                        -- NULL: publish_at is set
    clear_reason        text,                               -- why the next ticket says "cleared": a reset, a lost
                                                            -- message, a redrive. NULL: it does not, from a claim on
    put_off_since       timestamptz,                        -- since when no worker that got it knew its kind
    -- What becomes of the job if its worker is lost: 'retry', 'dead_letter' (its kind may not run twice), or 'halve'
    -- (it runs in a batch with others). Written by the claim: who takes the job back need not know the kind.
    on_crash            text        NOT NULL DEFAULT 'retry',
    -- The options of few jobs; NULL: the producer gave none.
    lane                text,                               -- '' in a queue with lanes, if the producer said none
    priority            smallint,                           -- within the lane: the lower, the sooner
    not_after           timestamptz,                        -- no attempt starts later
    expires_as          text,                               -- the job then ends as a dead letter (NULL), or 'cancelled'
    group_id            uuid,                               -- NULL: it neither waits for a job nor is waited for

    -- What every reader relies on: a queued job has no owner, and waits for its publication or for its message, never
    -- for both or for none; a processing one has an owner, a claim and a pulse. No other CHECK: every statement that
    -- writes a row reads all CHECKs of its table anew, and seven took a fifth of the time of a single INSERT. The
    -- statements keep the bounds of attempts and percents; `tenure verify` counts the rows that break them.
    CONSTRAINT live_job CHECK (
        CASE status
            WHEN 'queued' THEN
                num_nonnulls(claim_id, worker_id, worker_host, stale_after, last_activity_at, started_at) = 0
                AND num_nonnulls(publish_at, published_at) = 1
            WHEN 'processing' THEN
                num_nonnulls(claim_id, worker_id, worker_host, stale_after, last_activity_at, started_at) = 6
            ELSE false
        END)
) WITH (fillfactor = 50,
        -- Vacuum by the number of changed rows, at any size of the table, and without pauses.
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 20000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0,
        -- A table that has had many jobs will have them again. Giving its pages back takes a lock that stops every
        -- claim, and a table of no pages is planned for with scans of all of it, by statements that are planned once.
        vacuum_truncate = false);

-- The predicates never say status = '...': the planner would take such an index for a claim by primary key, and walk
-- all of it.

-- take_due.sql: the relay reads what is due, in order.
CREATE INDEX jobs_unpublished ON tenure.jobs (publish_at) WHERE publish_at IS NOT NULL;
-- published_queues.sql, suspects.sql, reclaim_lost.sql: the relay enters each queue once, at its newest or oldest jobs.
-- count_queued.sql and take_room count the jobs of one queue in this index and the next.
CREATE INDEX jobs_published ON tenure.jobs (queue, published_at) WHERE published_at IS NOT NULL;
CREATE INDEX jobs_unpublished_of_queue ON tenure.jobs (queue, publish_at) WHERE publish_at IS NOT NULL;

-- Jobs that may expire: expire.sql ends those whose time has come, once a second, and deletes its notes.
CREATE TABLE tenure.job_expiries (
    at           timestamptz NOT NULL,                      -- the job's not_after
    job_id       uuid        NOT NULL,                      -- as jobs.id; the job may have ended since
    PRIMARY KEY (at, job_id)
);
