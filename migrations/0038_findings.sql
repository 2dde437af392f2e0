-- Keeps what the last scan has found wrong with lanes, groups and running jobs, for the overview and the metrics.
ALTER TABLE tenure.scanner_state
    ADD COLUMN findings       jsonb,            -- what `tenure doctor` says of them; NULL: no scan has looked
    ADD COLUMN findings_until timestamptz;      -- until when that holds, if no other scan follows
