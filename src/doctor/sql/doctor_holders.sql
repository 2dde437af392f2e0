-- doctor_holders: transactions, replicas and slots that keep dead rows of this database from being removed, or hold
-- locks while idle.
--
--   $1 seconds after which a transaction is old
--
-- One row each, the oldest first. A role without pg_read_all_stats does not see how old others' sessions are.
-- A replica and a slot have no age but that of their oldest transaction; a million is some minutes of a busy
-- database. Vacuum itself holds nothing back.
WITH sessions AS (
    SELECT a.pid, a.application_name, a.usename, a.state,
           a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL AS has_snapshot,
           extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS open_s,
           extract(epoch FROM clock_timestamp() - a.state_change)::float8 AS idle_s
      FROM pg_stat_activity a
     WHERE a.datname = current_database()
       AND a.pid <> pg_backend_pid()
       AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
       AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
)
SELECT 'transaction' AS what, pid, application_name AS name, usename::text AS role, state, open_s AS age_s,
       NULL::bigint AS transactions
  FROM sessions
 WHERE has_snapshot AND open_s >= $1::float8
 UNION ALL
SELECT 'idle', pid, application_name, usename::text, state, idle_s, NULL
  FROM sessions
 WHERE NOT has_snapshot AND state LIKE 'idle in transaction%' AND idle_s >= $1::float8
 UNION ALL
SELECT 'replica', a.pid, a.application_name, a.usename::text, a.state, NULL, age(a.backend_xmin)::bigint
  FROM pg_stat_activity a
 WHERE a.backend_type = 'walsender' AND age(a.backend_xmin) > 1000000
 UNION ALL
SELECT 'prepared', NULL, p.gid, p.owner::text, NULL,
       extract(epoch FROM clock_timestamp() - p.prepared)::float8, NULL
  FROM pg_prepared_xacts p
 WHERE p.database = current_database()
   AND p.prepared <= clock_timestamp() - $1::float8 * interval '1 second'
 UNION ALL
SELECT 'slot', s.active_pid, s.slot_name::text, NULL, CASE WHEN s.active THEN 'active' ELSE 'not used' END, NULL,
       age(s.xmin)::bigint
  FROM pg_replication_slots s
 WHERE s.xmin IS NOT NULL AND (NOT s.active OR age(s.xmin) > 1000000)
 ORDER BY what, age_s DESC NULLS LAST, transactions DESC NULLS LAST
 LIMIT 100
