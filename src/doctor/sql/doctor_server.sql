-- doctor_server: the server, as every role may see it, and the statistics of the table of live jobs.
--
-- One row. `live` and `dead` are NULL if that table does not exist.
SELECT clock_timestamp() AS at,
       current_user::text AS role,
       current_setting('server_version') AS version,
       current_setting('server_version_num')::int AS version_number,
       pg_is_in_recovery() OR current_setting('transaction_read_only')::bool AS is_read_only,
       pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all_sessions,
       ARRAY(SELECT s.name FROM pg_settings s
              WHERE s.name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND s.setting = 'off'
              ORDER BY s.name) AS unsafe_settings,
       current_setting('default_transaction_isolation') AS isolation,
       (SELECT coalesce(sum(d.numbackends), 0) FROM pg_stat_database d) AS connections,
       -- Postgres 16 and later can reserve some for other roles than superusers, too.
       current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
           - coalesce(current_setting('reserved_connections', true)::bigint, 0) AS connections_max,
       current_setting('autovacuum')::bool AND current_setting('track_counts')::bool
           AND NOT EXISTS (SELECT FROM pg_options_to_table(c.reloptions) o
                            WHERE o.option_name = 'autovacuum_enabled' AND NOT o.option_value::bool) AS is_vacuumed,
       s.n_live_tup AS live,
       s.n_dead_tup AS dead
  FROM (SELECT 1) AS one
  LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'tenure')
    ON c.relname = 'jobs' AND c.relkind = 'r'
  LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
