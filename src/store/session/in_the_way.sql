-- in_the_way: whoever keeps a session from a lock that it waits for, the longest transaction first.
--
--   $1  the session's pid
--
-- Of other roles' sessions only the pid and the role are shown to whoever has not pg_read_all_stats. No statement's
-- text: it may hold payloads.
SELECT coalesce(
           'pid ' || a.pid || ' (' || concat_ws(', ', a.usename, nullif(a.application_name, ''), a.state,
               'its transaction open for ' || floor(extract(epoch FROM clock_timestamp() - a.xact_start)) || ' s') || ')',
           'a prepared transaction') AS holder
  FROM (SELECT DISTINCT unnest(pg_blocking_pids($1::int)) AS pid) b
  LEFT JOIN pg_stat_activity a USING (pid)
 ORDER BY a.xact_start NULLS LAST
 LIMIT 5
