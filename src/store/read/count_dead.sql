-- count_dead: the number of dead letters that match, at most $9; how many of those can be redriven; and the time of the
-- count.
--
--   $1 to $8 which: see dead_filter.sql  $9 count no further
--
-- A message that was refused before it became a job cannot be redriven.
-- Made of parts: `scripts/statement count_dead` prints it whole.
SELECT count(*) AS jobs, count(*) FILTER (WHERE is_job) AS redrivable, statement_timestamp() AS now
  FROM (SELECT payload IS NOT NULL AS is_job FROM tenure.dead_letter_jobs
         WHERE
-- include read/parts/dead_filter.sql
         LIMIT $9) d
