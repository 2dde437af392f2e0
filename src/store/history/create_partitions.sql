-- create_partitions: create the partitions of the history for a week ahead.
SELECT tenure.create_history_partitions(7) AS created
