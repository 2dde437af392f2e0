-- due_now: what is left to do for workers of these queues and kinds. Tests wait until nothing is.
--
--   $1 queues  $2 kinds; NULL: every kind
--
-- jobs: those that run or are due, that are about to expire, or that wait for an end which is told already; and due
-- ticks of schedules. in_lanes: those that are due in their lanes: a limit may let them go later.
WITH served AS MATERIALIZED (
    SELECT id, status, scheduled_at FROM tenure.jobs
     WHERE queue = ANY ($1::text[]) AND ($2::text[] IS NULL OR kind = ANY ($2::text[]))
)
SELECT (SELECT count(*) FROM served WHERE status = 'processing' OR scheduled_at <= statement_timestamp())
     + (SELECT count(*) FROM served JOIN tenure.job_expiries e ON e.job_id = served.id
         WHERE served.status = 'queued' AND e.at <= statement_timestamp())
     + (SELECT count(*) FROM tenure.group_ends)
     + (SELECT count(*)
          FROM tenure.schedules
         WHERE queue = ANY ($1::text[])
           AND ($2::text[] IS NULL OR kind = ANY ($2::text[]))
           AND next_at <= statement_timestamp() AND paused_at IS NULL
           AND NOT (overlap = 'queue' AND EXISTS (SELECT FROM tenure.jobs j WHERE j.id = schedules.last_job_id))) AS jobs,
       (SELECT count(*) FROM served JOIN tenure.lane_jobs l ON l.job_id = served.id
         WHERE l.due_at <= statement_timestamp()) AS in_lanes
