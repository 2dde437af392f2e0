-- purge_turn: keep the turn of a running sweep, so that no other worker begins one.
UPDATE tenure.scanner_state SET purged_at = clock_timestamp()
