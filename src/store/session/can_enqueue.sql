-- can_enqueue: whether a new job may be added over this session. An error: the schema is missing.
SELECT current_setting('transaction_read_only') = 'off' AND has_any_column_privilege('tenure.jobs', 'INSERT')
       AS can_enqueue
