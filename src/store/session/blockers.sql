-- blockers: the sessions that keep another session from a lock, the longest transaction first.
--
--   $1 pid of the session that waits
--
-- A role without pg_read_all_stats sees only the pid and the role of other roles' sessions. No statement's text: it may
-- hold payloads.
SELECT coalesce(
           'pid ' || a.pid || ' (' || concat_ws(', ', a.usename, nullif(a.application_name, ''), a.state,
               'its transaction open for ' || floor(extract(epoch FROM clock_timestamp() - a.xact_start)) || ' s') || ')',
           'a prepared transaction') AS holder
  FROM (SELECT DISTINCT unnest(pg_blocking_pids($1::int)) AS pid) b
  LEFT JOIN pg_stat_activity a USING (pid)
 ORDER BY a.xact_start NULLS LAST
 LIMIT 5
