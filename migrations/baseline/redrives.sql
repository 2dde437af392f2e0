-- Calm redrives: a few dead letters first, then the others at a rate, for as long as few of them fail.

-- The list is made when the redrive begins (start_redrive.sql). The worker that has the relay's turn goes on with it
-- once a second (tend_redrives), and start_redrive.sql deletes redrives that ended 30 days ago.
CREATE TABLE tenure.redrives (
    id          uuid             PRIMARY KEY DEFAULT gen_random_uuid(),  -- by which people follow and stop it
    started_at  timestamptz      NOT NULL DEFAULT clock_timestamp(),  -- when its list was made
    selection   jsonb            NOT NULL,                  -- which dead letters, as it was asked for
    canary      int              NOT NULL CHECK (canary >= 1),  -- how many jobs go first
    rate        double precision CHECK (rate > 0),          -- jobs a second after the canary; NULL: as they end well
    -- The share of failures at which it stops.
    stop_at     double precision NOT NULL CHECK (stop_at > 0 AND stop_at <= 1),
    jobs        bigint           NOT NULL,                  -- of the list
    redriven    bigint           NOT NULL DEFAULT 0,        -- so far; those that are in none of the next four are out
    completed   bigint           NOT NULL DEFAULT 0,        -- jobs that have completed without a failed attempt
    failed      bigint           NOT NULL DEFAULT 0,        -- jobs that have failed an attempt since. One that
                                                            -- completes with a later attempt counts, too
    cancelled   bigint           NOT NULL DEFAULT 0,        -- jobs that were cancelled since
    waiting     bigint           NOT NULL DEFAULT 0,        -- jobs that wait for a time, an event or other jobs,
                                                            -- without a failure so far
    missing     bigint           NOT NULL DEFAULT 0,        -- jobs that were no dead letters when their turn came
    state       text             NOT NULL DEFAULT 'canary'  -- 'cancelled': by a person
                CONSTRAINT redrive_state_is_known
                CHECK (state IN ('canary', 'running', 'done', 'stopped', 'cancelled')),
    reason      text,                                       -- why it stopped; NULL: it has not
    paced_from  timestamptz      NOT NULL DEFAULT clock_timestamp(),  -- the rate counts from here
    ended_at    timestamptz                                 -- NULL: it is open
);
-- has_redrives and tend_redrives: those that are open, the oldest first.
CREATE INDEX redrives_open ON tenure.redrives (started_at) WHERE ended_at IS NULL;

-- The list of each open redrive; it goes when the redrive ends.
CREATE TABLE tenure.redrive_jobs (
    redrive_id  uuid             NOT NULL REFERENCES tenure.redrives ON DELETE CASCADE,  -- whose list it is
    place       bigint           NOT NULL,                  -- from 1 on: the oldest dead letter first
    job_id      uuid             NOT NULL,                  -- the dead letter's, which the redriven job keeps
    redriven_at timestamptz,                                -- NULL: its turn has not come, or it was missing
    -- NULL: it is out, and nothing is known yet. 'failed' as in tenure.redrives.
    outcome     text             CONSTRAINT redriven_as_is_known
                                 CHECK (outcome IN ('completed', 'failed', 'cancelled', 'waiting')),
    ended_at    timestamptz,                                -- when the outcome was seen
    PRIMARY KEY (redrive_id, place)
);
-- tend_redrives: the jobs that are out.
CREATE INDEX redrive_jobs_open ON tenure.redrive_jobs (redrive_id) WHERE redriven_at IS NOT NULL AND ended_at IS NULL;
-- tend_redrives: the latest outcomes, by which it stops.
CREATE INDEX redrive_jobs_ended ON tenure.redrive_jobs (redrive_id, ended_at) WHERE ended_at IS NOT NULL;
