-- dead_lately: the largest groups of the dead letters of the last hour.
--
--   $1 dead letters to group, at most: the latest  $2 row limit
--
-- The columns are those of dead_groups.sql.
-- Made of parts: `scripts/statement dead_lately` prints it whole.
SELECT queue, kind, category, fingerprint, count(*) AS jobs, min(died_at) AS oldest, max(died_at) AS newest,
       max(line) AS line
  FROM (SELECT queue, kind, category, died_at,
-- include read/parts/error_line.sql
               AS line,
-- include read/parts/error_group.sql
               AS fingerprint
          FROM tenure.dead_letter_jobs
         WHERE died_at > statement_timestamp() - interval '1 hour'
         ORDER BY died_at DESC
         LIMIT $1) d
 GROUP BY queue, kind, category, fingerprint
 ORDER BY jobs DESC, queue, kind, category, fingerprint
 LIMIT $2
