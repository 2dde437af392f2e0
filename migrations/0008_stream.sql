-- The stream, measured: the messages that are no job yet, and the waiting jobs that no live worker runs.

-- Submissions: messages of the queue that have no live row. NULL: NATS did not answer the last scan. Workers of the
-- release before this one leave the column as it is; after submitted_until it says nothing any more.
ALTER TABLE tenure.queue_stats
    ADD COLUMN submitted           bigint,
    ADD COLUMN submitted_until     timestamptz,
    ADD COLUMN oldest_submitted_at timestamptz;             -- when the first of them was published; NULL: not known

-- Unserved: what waits for a worker that is not there, by queue and kind: a hundred entries at most, of the last scan. No
-- table of its own: the workers' role may write this row already.
ALTER TABLE tenure.scanner_state
    ADD COLUMN stream_until   timestamptz,                  -- NATS has answered: a queue that has no row has no submission
    ADD COLUMN unserved       jsonb,
    ADD COLUMN unserved_until timestamptz;
