-- Queues: what operators have set, the slots of limited queues, and what the last scan counted.

-- A row for each queue that has a setting, or had one.
CREATE TABLE tenure.queues (
    queue        text        PRIMARY KEY,                   -- as jobs.queue
    paused_at    timestamptz,                               -- no claim since then; NULL: it is not paused
    max_queued   bigint      CHECK (max_queued > 0),        -- beyond it, new jobs are refused; NULL: no limit
    max_running  int         CHECK (max_running > 0),       -- in the whole fleet; NULL: no limit
    -- Of moves between cells, until migration 33: nothing reads them.
    moved_to      text,                                     -- the cell that accepted the new jobs
    arrives_from  text,                                     -- the cell whose keys and limits were still being copied
    arrives_since timestamptz,                              -- when that copy began
    moves         bigint     NOT NULL DEFAULT 0,            -- the fencing number of the latest move
    -- What workers publish of this queue's jobs, for any program that subscribes: 'ends', or 'progress' (and ends);
    -- NULL: nothing is published.
    events        text
);

-- Slots of a queue with max_running, one for each job that may run, and for each that runs above a lowered limit. A
-- slot is taken while the job that it names runs under the token that it names. So each end of that attempt frees the
-- slot, and the statement that ends it does not know of slots.
CREATE TABLE tenure.queue_slots (
    queue         text   NOT NULL,                          -- as jobs.queue
    slot          int    NOT NULL,                          -- from 1 on
    job_id        uuid,                                     -- NULL: it was never taken, or was emptied by a new limit
    fencing_token bigint,                                   -- of that job's claim; NULL: likewise
    PRIMARY KEY (queue, slot)
);
-- Each claim takes free slots of its own. A program of an earlier release counts them under a lock that the others do
-- not take: one that then takes a slot that is no longer free, for a job that it has just claimed, is refused, and its
-- jobs are delivered again. A change of the limit, which moves running jobs from slot to slot, is not.
CREATE TRIGGER keep_slot BEFORE UPDATE ON tenure.queue_slots FOR EACH ROW
    WHEN (NEW.job_id IS NOT NULL AND OLD.job_id IS DISTINCT FROM NEW.job_id)
    EXECUTE FUNCTION tenure.keep_slot();

-- What the last scan counted (measure.sql, note_waiting.sql): every worker shows the same figures, and none has to
-- count for itself.
CREATE TABLE tenure.queue_stats (
    queue               text        PRIMARY KEY,            -- as jobs.queue
    due                 bigint      NOT NULL,               -- queued, and nothing but a worker is missing
    scheduled           bigint      NOT NULL,               -- queued for later
    processing          bigint      NOT NULL,               -- a worker runs them
    oldest_due_at       timestamptz,                        -- since when the longest waiting of the due ones is due
    -- Submissions: messages of the queue that have no live row. NULL: NATS did not answer the last scan. After
    -- submitted_until they say nothing any more.
    submitted           bigint,
    submitted_until     timestamptz,                        -- until when `submitted` holds, if no other scan follows
    oldest_submitted_at timestamptz,                        -- when the first of them was published; NULL: not known
    -- At least `standing` messages of the queue were submissions that no worker had received when NATS had made
    -- `standing_deliveries` deliveries of the queue: each later delivery may have taken one of them, and so max_queued
    -- may count them. standing_of: the time at which NATS created the consumer that counts the deliveries; empty: there
    -- was none. NULL, all: they were not read.
    standing            bigint,
    standing_deliveries bigint,                             -- how many NATS had made by then
    standing_of         text,                               -- when that consumer was created; '': there was none
    standing_until      timestamptz,                        -- until when these hold, if no other scan follows
    held                bigint      NOT NULL DEFAULT 0,     -- queued for a time that never comes: by a lane, or jobs
    held_due            bigint      NOT NULL DEFAULT 0,     -- those whose time has come, which wait for their lane
    lanes_waiting       bigint      NOT NULL DEFAULT 0      -- the lanes that have any of these
);
