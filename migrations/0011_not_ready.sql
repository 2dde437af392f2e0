-- Not ready: what keeps a worker from taking jobs, where others can read it.

-- What the worker lacked at its last renewal, each with the reason, as its /readyz says; NULL: nothing.
ALTER TABLE tenure.workers ADD COLUMN not_ready text;
