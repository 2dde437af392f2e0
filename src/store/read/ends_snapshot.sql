-- ends_snapshot: which transactions have ended by now, by the database's clock.
--
-- On a standby they are the primary's, as far as the standby has replayed.
SELECT pg_current_snapshot()::text AS snapshot, clock_timestamp() AS now
