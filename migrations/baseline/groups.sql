-- Groups: jobs that wait for other jobs.
--
-- A *follower* is held, as a job of a lane is: it is queued, its `publish_at` never comes, and so no claim takes it. An
-- edge says for which job it waits. The transaction that completes jobs settles their edges (settle_edges), or the
-- trigger below notes the end of a job in `group_ends`; `tenure.release_followers` works the notes off, and its caller
-- publishes what it releases. So neither an old program nor a killed worker can lose an end; a plain job costs a
-- condition.

-- A row for each job that waits for others, before it starts or between two attempts.
CREATE TABLE tenure.followers (
    job_id       uuid        PRIMARY KEY,                   -- as jobs.id; the row stays until the job is in no table
    group_id     uuid        NOT NULL,                      -- as jobs.group_id; of a job in no group that waits in a
                                                            -- step, its own id
    -- What it does when a job before it has failed or was cancelled.
    on_failure   text        NOT NULL CHECK (on_failure IN ('cancel', 'run', 'hold')),
    cut_at       timestamptz,                               -- when that has cancelled it: it comes back if they all
                                                            -- complete. NULL: not so, or a person has cancelled it
    lane         text,                                      -- from here to expires_as: what the job had, for its
    priority     smallint,                                  -- return
    not_after    timestamptz,                               -- as jobs.not_after
    expires_as   text,                                      -- as jobs.expires_as
    -- The edge (its n) at which the next look for an open one begins. It saves time and decides nothing: an edge before
    -- it may be open.
    open_n       bigint      NOT NULL DEFAULT 0
);

-- `after` waits for `before`. No index knows how an edge has ended, so that the end changes the row in its place
-- (heap-only), and no index: a page has room for each of its rows twice.
CREATE TABLE tenure.job_edges (
    before       uuid        NOT NULL,                      -- the job that is waited for
    after        uuid        NOT NULL,                      -- the job that waits: a follower
    group_id     uuid        NOT NULL,                      -- as jobs.group_id, of `before`
    n            bigint      GENERATED ALWAYS AS IDENTITY,  -- the order in which a follower sees what came before it
    step         text,                                      -- the call of a running job; NULL: `after` has not begun
    state        text,                                      -- how `before` has ended: completed, failed, cancelled, or
                                                            -- purged (its dead letter is gone); NULL: it has not
    ended_at     timestamptz,                               -- when `state` was written; NULL, both: not yet
    output       jsonb,                                     -- what it left, for as long as a follower may read it;
                                                            -- NULL: nothing
    PRIMARY KEY (before, after)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
        fillfactor = 45);
-- outputs.sql, step_states.sql, release_followers: what a follower waits for, in order.
CREATE INDEX job_edges_in_order ON tenure.job_edges (after, n);
-- graph.sql: the edges of a group, a page at a time.
CREATE INDEX job_edges_of_group ON tenure.job_edges (group_id, n);

-- Notes for release_followers, which deletes them: jobs of groups that have ended, and followers to look at.
CREATE TABLE tenure.group_ends (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- the oldest are worked off first
    job_id       uuid        NOT NULL,                      -- the job that has ended; of 'settled', the follower
    -- completed, failed, cancelled, purged; or 'settled': jobs before `job_id` have ended, and their edges are settled.
    ended_as     text        NOT NULL,
    step         text,                                      -- of 'settled': as in the edges
    lacks        text,                                      -- of 'settled': how one has ended that has not completed;
                                                            -- NULL: a look at the edges says
    settled_to   uuid                                       -- else: up to which follower the edges of `job_id` are
                                                            -- settled; NULL: none is
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

-- Notes how a job of a group has ended, as its transaction commits: by then it is written what has become of the job.
-- `tenure.completes` is 'settled' while the statement that completes jobs settles their edges itself (settle_edges):
-- then it passes over them, but for a queued job, which does not complete, and one that is to be cancelled.
CREATE CONSTRAINT TRIGGER ends_in_group AFTER DELETE ON tenure.jobs DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (OLD.group_id IS NOT NULL
                       AND (current_setting('tenure.completes', true) IS DISTINCT FROM 'settled'
                            OR OLD.status <> 'processing' OR OLD.cancel_requested_at IS NOT NULL))
    EXECUTE FUNCTION tenure.note_group_end();
