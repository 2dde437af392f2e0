-- handler_pool: where a connection leads, and whether `fenced_tx` and `once` can write there.
--
-- Databases of two servers may have one name and one oid; the identifier is of the cluster, and its standbys have it, too.
SELECT (SELECT system_identifier FROM pg_control_system())::text AS cluster,
       (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS database,
       current_setting('transaction_read_only') = 'off' AS writes,
       has_column_privilege('tenure.jobs', 'last_activity_at', 'UPDATE')
           AND has_table_privilege('tenure.effects', 'INSERT') AS may_write
