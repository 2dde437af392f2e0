-- Ends: those who follow the ends of jobs read each one once, and none too early; those who watch a queue are told.

-- The transaction that wrote the end: an end is told to followers once every transaction before it has ended, because a
-- later commit may have an earlier time. NULL: a row from before this migration. The default writes it, in the
-- statements of older releases, too.
ALTER TABLE tenure.job_history ADD COLUMN ended_xid xid8;
ALTER TABLE tenure.job_history ALTER COLUMN ended_xid SET DEFAULT pg_current_xact_id();
ALTER TABLE tenure.dead_letter_jobs ADD COLUMN ended_xid xid8;
ALTER TABLE tenure.dead_letter_jobs ALTER COLUMN ended_xid SET DEFAULT pg_current_xact_id();

-- Finds the ends since a time. Rows are written in order of that time, so an entry for each 4 MB is enough, and writing
-- a row costs nothing. New partitions have it; `tenure migrate` builds it for the others, beside the writers.
CREATE INDEX job_history_by_end ON ONLY tenure.job_history USING brin (finished_at)
    WITH (pages_per_range = 512, autosummarize = on);

-- What workers publish of this queue's jobs, for any program that subscribes: 'ends', or 'progress' and ends. NULL: nothing.
ALTER TABLE tenure.queues ADD COLUMN events text;
