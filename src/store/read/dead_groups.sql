-- dead_groups: the latest dead letters, grouped by the shape of their error, the largest group first.
--
--   $1 to $6 which: see dead_filter.sql  $7 row limit  $8 dead letters to group, at most
--
-- Errors of one shape differ only in numbers, ids and quoted texts, which are # in `shape`. `example` is one of the
-- errors as it stands.
-- Made of parts: `scripts/statement dead_groups` prints it whole.
SELECT queue, kind, category, shape, count(*) AS jobs, min(died_at) AS oldest, max(died_at) AS newest,
       max(last_error) AS example
  FROM (SELECT queue, kind, category, died_at, left(last_error, 2000) AS last_error,
               regexp_replace(left(last_error, 200), '"[^"]*"|''[^'']*''|\m[0-9a-f]{8}[0-9a-f-]*\M|[0-9]+', '#', 'g') AS shape
          FROM tenure.dead_letter_jobs
         WHERE
-- include read/parts/dead_filter.sql
         ORDER BY died_at DESC
         LIMIT $8) d
 GROUP BY queue, kind, category, shape
 ORDER BY jobs DESC, newest DESC
 LIMIT $7
