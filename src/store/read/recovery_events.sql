-- recovery_events: the recovery events of all jobs, the latest first, with the kind and the next owner of each job.
--
--   $1 event or NULL  $2 path or NULL  $3 worker (owner before, or recovering worker) or NULL  $4 job or NULL
--   $5 before this event's id or NULL  $6 row limit
--
-- The next owner made the first claim with a later token. NULL: no worker has claimed the job since. The kind is NULL
-- once retention has removed the job.
SELECT e.id, e.at, e.event, e.path, e.job_id, e.fencing_token, e.owner_before,
       extract(epoch FROM e.silence)::float8 AS silence_s, e.reason, e.recovered_by,
       n.worker_id AS owner_after, n.fencing_token AS token_after,
       (SELECT j.kind FROM tenure.all_jobs j WHERE j.id = e.job_id LIMIT 1) AS kind
  FROM (SELECT * FROM tenure.recovery_events
         WHERE ($1::text IS NULL OR event = $1)
           AND ($2::text IS NULL OR path = $2)
           AND ($3::text IS NULL OR owner_before = $3 OR recovered_by = $3)
           AND ($4::uuid IS NULL OR job_id = $4)
           AND id < coalesce($5, 9223372036854775807)
         ORDER BY id DESC
         LIMIT $6) e
  LEFT JOIN LATERAL (
       SELECT x.worker_id, x.fencing_token FROM tenure.job_executions_all x
        WHERE x.job_id = e.job_id AND x.fencing_token > e.fencing_token
        ORDER BY x.fencing_token LIMIT 1) n ON true
 ORDER BY e.id DESC
