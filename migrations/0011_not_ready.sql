-- Not ready: what keeps a worker from taking jobs, and what keeps messages from a worker, where others can read it.

-- What the worker lacked at its last renewal, each with the reason, as its /readyz says; NULL: nothing.
ALTER TABLE tenure.workers ADD COLUMN not_ready text;

-- Since when it drains: it finishes its jobs, and takes no other. NULL: it does not.
ALTER TABLE tenure.workers ADD COLUMN draining_at timestamptz;

-- Messages whose subject names no valid queue or kind, as the last scan counted them, and one such subject. They hold as
-- long as `unserved`.
ALTER TABLE tenure.scanner_state
    ADD COLUMN misnamed         bigint,
    ADD COLUMN misnamed_subject text;
