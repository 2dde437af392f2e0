-- Lanes: fair turns, limits and rates by a key that the producer says, priority, order, debounce, expiry.
--
-- Hold the ticket, not the job: a job of a queue with lanes is *held*. It is queued, its `publish_at` never comes, and
-- so no claim takes it. `tenure.admit` releases it: it gives the job a slot and a token of its lane, and the caller
-- publishes its message. A slot is judged by its job, so that none can leak; no claim and no completion knows of lanes.

-- A row for each queue with lanes (put_lanes). `running`, `rate` and `burst` are those of each lane, `queue_…` those
-- of the whole queue. A trigger on tenure.jobs, which put_lanes creates for the queue and forget_lanes drops, holds
-- its new jobs.
CREATE TABLE tenure.lane_settings (
    queue        text        PRIMARY KEY,                   -- as jobs.queue
    running      int         CHECK (running > 0),           -- jobs of a lane that may run; NULL: no limit
    rate         float8      CHECK (rate > 0),              -- tokens a second of a lane; NULL: no rate
    burst        float8      CHECK (burst >= 1),            -- the most tokens of a lane
    queue_rate   float8      CHECK (queue_rate > 0),        -- the same of the whole queue
    queue_burst  float8      CHECK (queue_burst >= 1),      -- the most tokens of the queue; NULL: it has no rate
    turns        boolean     NOT NULL,                      -- only a window of the queue's jobs has messages
    ordered      boolean     NOT NULL,                      -- one job of a lane at a time, in the order of enqueue
    tokens       float8,                                    -- of the queue, at refilled_at; NULL, both: it is full
    refilled_at  timestamptz,                               -- up to when `tokens` has been filled up
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),  -- of the settings, those of single lanes, too
    removed_at   timestamptz,                               -- the queue has no lanes any more; what is held is being
                                                            -- released, and sweep_lanes deletes the row. NULL: it has
    CONSTRAINT a_rate_has_a_burst CHECK ((rate IS NULL) = (burst IS NULL)
                                         AND (queue_rate IS NULL) = (queue_burst IS NULL))
);

-- A row for each lane that has waiting or running jobs, or settings of its own.
CREATE TABLE tenure.lanes (
    queue        text        NOT NULL,                      -- as jobs.queue
    lane         text        NOT NULL,                      -- '': of jobs whose producer said none
    turn         float8,                                    -- its place among the lanes that may release a job now, as
                                                            -- virtual time; NULL: it may not
    passed       float8      NOT NULL DEFAULT 0,            -- the turns that it has had, as virtual time
    tokens       float8,                                    -- at refilled_at; NULL, both: full, or without a rate
    refilled_at  timestamptz,                               -- up to when `tokens` has been filled up
    next_at      timestamptz,                               -- when to look again; NULL: at a wake alone
    weight       float8      CHECK (weight > 0),            -- of its turns, set for this lane; NULL: 1
    running      int         CHECK (running > 0),           -- set for this lane; NULL: as the queue says
    PRIMARY KEY (queue, lane)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0);
-- admit: the lanes in the line, by turn. tend_lanes: which queues have any.
CREATE INDEX lanes_in_turn ON tenure.lanes (queue, turn) WHERE turn IS NOT NULL;
-- tend_lanes and lanes_overdue.sql: the lanes whose time has come.
CREATE INDEX lanes_later ON tenure.lanes (next_at) WHERE next_at IS NOT NULL;

-- The held jobs, in order.
CREATE TABLE tenure.lane_jobs (
    job_id       uuid        PRIMARY KEY,                   -- as jobs.id
    queue        text        NOT NULL,                      -- as jobs.queue
    lane         text        NOT NULL,                      -- as jobs.lane
    priority     smallint    NOT NULL,                      -- the lower, the sooner; 0 in an ordered queue
    -- NULL until the job is due, then the time since when, in microseconds; of an ordered queue 0, from the start.
    place        bigint,
    arrival      bigint      GENERATED ALWAYS AS IDENTITY,  -- the order of enqueue
    due_at       timestamptz NOT NULL                       -- from the year 9999 on: it waits for jobs or for an event
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000);
-- admit and list_lanes.sql: the first jobs of a lane that are due.
CREATE INDEX lane_jobs_in_line ON tenure.lane_jobs (queue, lane, priority, place, arrival) WHERE place IS NOT NULL;

-- The released jobs. A slot is taken while its job is live and not held.
CREATE TABLE tenure.lane_slots (
    queue         text       NOT NULL,                      -- as jobs.queue
    lane          text       NOT NULL,                      -- as jobs.lane
    job_id        uuid       NOT NULL,                      -- as jobs.id; a job that has ended leaves the slot free
    fencing_token bigint     NOT NULL,                      -- the job's at its release: if it ends under that, it
                                                            -- never ran, and its token comes back
    PRIMARY KEY (queue, lane, job_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

-- A lane to look at, from a time on: a transaction that adds a job cannot touch the lane's row, which others wait for.
CREATE TABLE tenure.lane_wakes (
    at           timestamptz NOT NULL,                      -- when to look
    id           bigint      GENERATED ALWAYS AS IDENTITY,  -- tells wakes of one time apart
    queue        text        NOT NULL,                      -- as jobs.queue
    lane         text        NOT NULL,                      -- as jobs.lane
    job_id       uuid,                                      -- a job that is due then; NULL: look at the lane
    PRIMARY KEY (at, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
-- admit: the wakes of the lanes that it looks at.
CREATE INDEX lane_wakes_of_lane ON tenure.lane_wakes (queue, lane) WHERE job_id IS NULL;
