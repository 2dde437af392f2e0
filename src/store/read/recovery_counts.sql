-- recovery_counts: what was recovered and refused lately, by what happened, who noticed, and when.
--
--   $1 how many minutes back  $2 so many minutes are one
SELECT event, path, (extract(epoch FROM statement_timestamp() - at) / 60)::bigint / $2 AS ago, count(*) AS jobs
  FROM tenure.recovery_events
 WHERE at > statement_timestamp() - $1 * interval '1 minute'
 GROUP BY 1, 2, 3
 ORDER BY 1, 2, 3
