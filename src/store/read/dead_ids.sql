-- dead_ids: dead letters that can be redriven, a page at a time, the oldest first.
--
--   $1 to $8 which: see dead_filter.sql  $9 row limit
--
-- A message that was refused before it became a job is left out. A job that dies again meanwhile comes only once.
-- Made of parts: `scripts/statement dead_ids` prints it whole.
SELECT id
  FROM tenure.dead_letter_jobs
 WHERE
-- include read/parts/dead_filter.sql
   AND payload IS NOT NULL
 ORDER BY died_at
 LIMIT $9
