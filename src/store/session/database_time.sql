-- database_time: the database's time, the only clock.
SELECT statement_timestamp() AS at
