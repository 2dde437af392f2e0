-- queue_room: the free slots of a queue with a limit, at most as many as may be taken.
--
--   $1 queue
--
-- A row a slot; one without a slot: none is free. No row, or one without max_running: the queue has no limit.
-- A slot is taken while its job runs under its token. When a limit was lowered, more slots are taken than it has:
-- none is free until enough of their jobs have ended.
WITH slots AS MATERIALIZED (
    SELECT s.slot,
           -- Not a join: one could be walked the wrong way round, over all jobs.
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
