-- graph: the jobs of a group, and which waits for which.
--
--   $1 the id of any of its jobs  $2 the most edges  $3 after this place
--
-- One row an edge, the oldest first: its two jobs, the step that waits, and how the first one ended. No row: the job is in no
-- group, or it was removed with its group.
WITH own AS MATERIALIZED (
    SELECT group_id FROM tenure.jobs WHERE id = $1 AND group_id IS NOT NULL
     UNION ALL
    SELECT group_id FROM tenure.followers WHERE job_id = $1
     UNION ALL
    (SELECT group_id FROM tenure.job_edges WHERE before = $1 LIMIT 1)
     LIMIT 1
)
SELECT before, after, step, state, n
  FROM tenure.job_edges
 WHERE group_id = (SELECT group_id FROM own) AND n > $3
 ORDER BY n
 LIMIT $2
