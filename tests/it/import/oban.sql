-- The table of Oban as its migrations 1 to 14 leave it: Oban is written in Elixir, and the tests install no Elixir.
SET search_path = public;
CREATE TYPE oban_job_state AS ENUM ('available', 'suspended', 'scheduled', 'executing', 'retryable', 'completed',
                                    'discarded', 'cancelled');

CREATE TABLE oban_jobs (
    id           bigserial      PRIMARY KEY,
    state        oban_job_state NOT NULL DEFAULT 'available',
    queue        text           NOT NULL DEFAULT 'default',
    worker       text           NOT NULL,
    args         jsonb          NOT NULL DEFAULT '{}',
    errors       jsonb[]        NOT NULL DEFAULT '{}',
    attempt      int            NOT NULL DEFAULT 0,
    max_attempts int            NOT NULL DEFAULT 20,
    inserted_at  timestamp      NOT NULL DEFAULT timezone('UTC', now()),
    scheduled_at timestamp      NOT NULL DEFAULT timezone('UTC', now()),
    attempted_at timestamp,
    completed_at timestamp,
    attempted_by text[],
    discarded_at timestamp,
    priority     int            NOT NULL DEFAULT 0,
    tags         text[]         DEFAULT '{}',
    meta         jsonb          DEFAULT '{}',
    cancelled_at timestamp,
    CONSTRAINT worker_length CHECK (char_length(worker) BETWEEN 1 AND 127),
    CONSTRAINT queue_length CHECK (char_length(queue) BETWEEN 1 AND 127),
    CONSTRAINT positive_max_attempts CHECK (max_attempts > 0),
    CONSTRAINT attempt_range CHECK (attempt BETWEEN 0 AND max_attempts),
    CONSTRAINT non_negative_priority CHECK (priority >= 0)
);
CREATE INDEX oban_jobs_state_queue_priority_scheduled_at_id_index ON oban_jobs (state, queue, priority, scheduled_at, id);
CREATE INDEX oban_jobs_meta_index ON oban_jobs USING gin (meta);
CREATE INDEX oban_jobs_state_cancelled_at_index ON oban_jobs (state, cancelled_at);
RESET search_path;
