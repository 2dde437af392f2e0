-- dead_groups: the latest dead letters, in groups whose errors read alike, the largest group first.
--
--   $1 to $8 which: see dead_filter.sql  $9 row limit  $10 dead letters to group, at most
--
-- `fingerprint` names a group: see error_group.sql. `line` is the telling line of one of its errors.
-- Made of parts: `scripts/statement dead_groups` prints it whole.
SELECT queue, kind, category, fingerprint, count(*) AS jobs, min(died_at) AS oldest, max(died_at) AS newest,
       max(line) AS line
  FROM (SELECT queue, kind, category, died_at,
-- include read/parts/error_line.sql
               AS line,
-- include read/parts/error_group.sql
               AS fingerprint
          FROM tenure.dead_letter_jobs
         WHERE
-- include read/parts/dead_filter.sql
         ORDER BY died_at DESC
         LIMIT $10) d
 GROUP BY queue, kind, category, fingerprint
 ORDER BY jobs DESC, newest DESC
 LIMIT $9
