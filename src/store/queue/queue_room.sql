-- queue_room: the free slots of a queue with a limit, at most as many as the limit leaves.
--
--   $1 queue
--
-- One row a slot; one row with a NULL slot: no slot is free. No row, or a NULL max_running: the queue has no limit.
-- A slot is taken while its job runs under its token. After a limit was lowered, more slots may be taken than it
-- allows: no slot is free until enough of their jobs have ended.
WITH slots AS MATERIALIZED (
    SELECT s.slot,
           -- Not a join: the planner could walk one the wrong way round, over all jobs.
           coalesce((SELECT j.status = 'processing' AND j.fencing_token = s.fencing_token
                       FROM tenure.jobs j WHERE j.id = s.job_id), false) AS taken
      FROM tenure.queue_slots s
     WHERE s.queue = $1
)
SELECT q.max_running, free.slot
  FROM tenure.queues q
  LEFT JOIN LATERAL (
       SELECT slot FROM slots
        WHERE NOT taken
        ORDER BY slot
        LIMIT (SELECT greatest(0, q.max_running - count(*) FILTER (WHERE taken)) FROM slots)) free ON true
 WHERE q.queue = $1
