-- activity: the counts of all workers by units of time, of all queues or of one; the oldest unit first.
--
--   $1 how many units back, the current one among them  $2 seconds in a unit  $3 queue or NULL
--
-- Units begin at multiples of $2 since 1970. Units without activity are missing.
-- The counts of earlier hours stand in longer pieces than minutes (thin_activity.sql): units of a quarter of an hour
-- are right for a day back, units of two hours for a week.
-- Made of parts: `scripts/statement activity` prints it whole.
WITH span AS (
    SELECT floor(extract(epoch FROM statement_timestamp()) / $2::bigint)::bigint AS this
)
SELECT (SELECT this FROM span) - floor(extract(epoch FROM minute) / $2::bigint)::bigint AS units_ago,
-- include history/parts/activity_sums.sql
  FROM tenure.activity
 WHERE minute >= (SELECT to_timestamp((this - $1::bigint + 1) * $2::bigint) FROM span)
   AND ($3::text IS NULL OR queue = $3)
 GROUP BY 1
 ORDER BY 1 DESC
