-- ends_settled: every transaction before `settled` has ended, and `next` has not begun. By the database's clock.
--
-- On a standby both are the primary's, as far as the standby has replayed.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS settled, pg_snapshot_xmax(pg_current_snapshot())::text AS next,
       clock_timestamp() AS now
