-- database_time: the only clock.
SELECT statement_timestamp() AS at
