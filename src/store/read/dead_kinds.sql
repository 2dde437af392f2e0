-- dead_kinds: the numbers of dead letters by queue and kind, and of those that died lately.
--
--   $1 seconds  $2 row limit
--
-- `attempts` are those of the jobs that died within $1 seconds: each of them failed.
SELECT queue, kind, count(*) AS dead, count(*) FILTER (WHERE is_late) AS died,
       coalesce(sum(attempt) FILTER (WHERE is_late), 0)::bigint AS attempts
  FROM (SELECT queue, kind, attempt, died_at > statement_timestamp() - $1::bigint * interval '1 second' AS is_late
          FROM tenure.dead_letter_jobs) d
 GROUP BY queue, kind
 ORDER BY dead DESC, queue, kind
 LIMIT $2::bigint
