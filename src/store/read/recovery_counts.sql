-- recovery_counts: the number of recent recovery events, by event, path and time.
--
--   $1 how many minutes back  $2 minutes in one unit of `ago`
SELECT event, path, (extract(epoch FROM statement_timestamp() - at) / 60)::bigint / $2 AS ago, count(*) AS jobs
  FROM tenure.recovery_events
 WHERE at > statement_timestamp() - $1 * interval '1 minute'
 GROUP BY 1, 2, 3
 ORDER BY 1, 2, 3
