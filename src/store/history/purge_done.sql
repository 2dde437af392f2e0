-- purge_done: a sweep has come to its end.
UPDATE tenure.scanner_state SET swept_at = clock_timestamp()
