-- create_partitions: a week of history ahead.
SELECT tenure.create_history_partitions(7) AS created
