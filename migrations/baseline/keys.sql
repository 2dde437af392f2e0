-- Keys: what makes an enqueue or a submission happen once.

-- A key outlives its job's row: only the statement that inserted the key creates the job, or a redelivery after the
-- completion would create it anew.
CREATE TABLE tenure.job_keys (
    -- The queue of a unique key; QUEUE/queued or QUEUE/live, of one that lasts only so long; '' of a submission's
    -- identity.
    scope           text        NOT NULL,
    key             text        NOT NULL,                   -- the producer's, at most 512 bytes; in the scope '' the
                                                            -- message's time in nanoseconds and its sequence
    job_id          uuid        NOT NULL,                   -- the job that holds it
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),  -- when that job took it
    -- Of a submission: where its message stands. The key may go only when the message has. NULL: no submission's.
    stream_seq      bigint,
    stream_published_at timestamptz,                        -- when NATS stored it, by the server's clock
    -- When the job ended, if its row may be gone before its key: it kept no history, retention has removed it (and it
    -- ended long after it was made), or, until migration 33, it went to another cell. NULL: purge_keys counts from
    -- created_at.
    ended_at        timestamptz,
    lasting         boolean,                                -- true: `take_key` has taken it; NULL: anything else
    PRIMARY KEY (scope, key)
);
-- missed.sql and known_jobs.sql ask whether a job without a row has ever been; complete_unkept.sql and retention write
-- its end; purge_keys walks in the order of ids, which is time.
CREATE INDEX job_keys_by_job ON tenure.job_keys (job_id);
