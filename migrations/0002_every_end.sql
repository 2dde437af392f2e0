-- Every way a job can end.

-- What becomes of a job whose worker is lost while it runs: a kind may not run twice. Written by the
-- claim, as stale_after is, so that whoever takes the job back need not know the kind.
ALTER TABLE tenure.jobs ADD COLUMN on_crash text NOT NULL DEFAULT 'retry'
    CONSTRAINT on_crash_is_known CHECK (on_crash IN ('retry', 'dead_letter'));

-- Since when nobody answers for this process; its own renewal, or an answer, clears it.
ALTER TABLE tenure.workers ADD COLUMN suspected_at timestamptz;
-- When somebody last asked for it, and how often it renews its row: by that it is judged.
ALTER TABLE tenure.workers ADD COLUMN probed_at timestamptz;
ALTER TABLE tenure.workers ADD COLUMN renew_every interval NOT NULL DEFAULT '5 seconds';
