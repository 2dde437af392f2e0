-- purge_done: record the end of a sweep.
UPDATE tenure.scanner_state SET swept_at = clock_timestamp()
