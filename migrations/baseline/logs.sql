-- Logs of jobs: the end of what an attempt has printed, beside its job, for workers that keep it.

-- write_logs.sql keeps a row for each of the last three attempts that have printed something.
CREATE TABLE tenure.job_logs (
    job_id        uuid        NOT NULL,                     -- as jobs.id
    fencing_token bigint      NOT NULL,                     -- the attempt's
    text          text        NOT NULL,                     -- the last lines that it has printed, at most 64 KiB
    is_cut        boolean     NOT NULL,                     -- an earlier part is missing
    written_at    timestamptz NOT NULL DEFAULT clock_timestamp(),  -- by its last write
    PRIMARY KEY (job_id, fencing_token)
);
