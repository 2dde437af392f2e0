-- recovery_counts: the number of recent recovery events, by event, path and units of time.
--
--   $1 how many units back, the current one among them  $2 seconds in a unit  $3 how many seconds back, at least
--
-- Units begin at multiples of $2 since 1970. What is older than $1 units counts as $1 units ago.
WITH span AS (
    SELECT floor(extract(epoch FROM statement_timestamp()) / $2::bigint)::bigint AS this
)
SELECT event, path,
       least($1::bigint, (SELECT this FROM span) - floor(extract(epoch FROM at) / $2::bigint)::bigint) AS units_ago,
       count(*) AS jobs
  FROM tenure.recovery_events
 WHERE at >= (SELECT least(to_timestamp((this - $1::bigint + 1) * $2::bigint),
                           statement_timestamp() - $3::bigint * interval '1 second') FROM span)
 GROUP BY 1, 2, 3
 ORDER BY 1, 2, 3
