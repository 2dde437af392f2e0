-- purge_turn: the sweep goes on: nobody else begins one meanwhile.
UPDATE tenure.scanner_state SET purged_at = clock_timestamp()
