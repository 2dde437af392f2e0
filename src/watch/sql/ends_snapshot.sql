-- ends_snapshot: which transactions have ended by now, by the database's clock, and since when this server runs.
--
-- A standby does not tell which transactions are open: there, only those before the oldest open one count as ended.
SELECT CASE WHEN pg_is_in_recovery()
            THEN format('%s:%s:', pg_snapshot_xmin(pg_current_snapshot()), pg_snapshot_xmin(pg_current_snapshot()))
            ELSE pg_current_snapshot()::text END AS snapshot,
       clock_timestamp() AS now, pg_postmaster_start_time() AS started_at
