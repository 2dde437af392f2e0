-- count_dead: the number of dead letters that match, at most $7, and the time of the count.
--
--   $1 to $6 which: see dead_filter.sql  $7 count no further
--
-- Made of parts: `scripts/statement count_dead` prints it whole.
SELECT count(*) AS jobs, statement_timestamp() AS now
  FROM (SELECT FROM tenure.dead_letter_jobs
         WHERE
-- include read/parts/dead_filter.sql
         LIMIT $7) d
