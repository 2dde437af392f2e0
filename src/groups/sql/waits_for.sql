-- waits_for: for what the jobs wait that are held, but not by a lane.
--
--   $1 ids
--
-- One row a job and what it waits for: jobs of its group, or of a step of its own (how many of how many have ended, and
-- how many of these have not completed), or an event, until a time or for ever. A job that pauses before a retry waits for
-- its time alone.
WITH held AS MATERIALIZED (
    SELECT u.id FROM unnest($1::uuid[]) AS u(id)
     WHERE (SELECT x.outcome FROM tenure.job_executions x
             WHERE x.job_id = u.id ORDER BY x.fencing_token DESC LIMIT 1) IS DISTINCT FROM 'retried'
)
SELECT e.after AS job_id, e.step, count(*) AS jobs, count(e.state) AS ended,
       count(*) FILTER (WHERE e.state <> 'completed') AS lacking, NULL::timestamptz AS until
  FROM tenure.job_edges e
 WHERE e.after = ANY (ARRAY(SELECT id FROM held))
 GROUP BY e.after, e.step
HAVING bool_or(e.state IS DISTINCT FROM 'completed')
 UNION ALL
SELECT job_id, key, NULL, NULL, NULL, wakes_at
  FROM tenure.effects
 WHERE job_id = ANY (ARRAY(SELECT id FROM held)) AND step_kind = 'awaited'
 ORDER BY 1, 2
