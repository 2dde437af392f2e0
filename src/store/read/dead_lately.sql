-- dead_lately: the largest groups of the dead letters of the last hour.
--
--   $1 dead letters to group, at most: the latest  $2 row limit
--
-- `fingerprint` names a group: see error_group.sql.
-- Made of parts: `scripts/statement dead_lately` prints it whole.
SELECT queue, kind, category, fingerprint, count(*) AS jobs
  FROM (SELECT queue, kind, category,
-- include read/parts/error_group.sql
               AS fingerprint
          FROM tenure.dead_letter_jobs
         WHERE died_at > statement_timestamp() - interval '1 hour'
         ORDER BY died_at DESC
         LIMIT $1) d
 GROUP BY queue, kind, category, fingerprint
 ORDER BY jobs DESC, queue, kind, category, fingerprint
 LIMIT $2
