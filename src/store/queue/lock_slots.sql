-- lock_slots: lock free slots of a limited queue for a claim. First statement of its transaction; claim_limited.sql
-- follows.
--
--   $1 queue  $2 how many jobs the claim is for
--
-- One row a slot; one row with a NULL slot: every free slot is locked by another claim, or no slot is free. No row, or
-- a NULL max_running: the queue has no limit.
-- Claims lock different slots, and wait for none: SKIP LOCKED. A slot is taken while its job runs under its token.
-- The next statement judges the locked slots. This one's snapshot is older than its locks: a slot that another claim
-- has taken in between looks free here.
-- After the limit was lowered, jobs may run in slots above it. Their slots are locked, too, and a free one for each.
-- The time limit is for the tables: a migration may have locked one.
WITH said AS MATERIALIZED (
    SELECT max_running FROM tenure.queues
     WHERE queue = $1 AND (SELECT set_config('lock_timeout', '500ms', true)) IS NOT NULL
), above AS MATERIALIZED (
    SELECT s.slot
      FROM tenure.queue_slots s
     WHERE s.queue = $1 AND s.slot > (SELECT max_running FROM said)
       -- Not a join: the planner could walk one the wrong way round, over all jobs.
       AND coalesce((SELECT j.status = 'processing' AND j.fencing_token = s.fencing_token
                       FROM tenure.jobs j WHERE j.id = s.job_id), false)
     ORDER BY s.slot
       FOR NO KEY UPDATE OF s SKIP LOCKED
), free AS MATERIALIZED (
    SELECT s.slot
      FROM tenure.queue_slots s
     WHERE s.queue = $1 AND s.slot <= (SELECT max_running FROM said)
       AND NOT coalesce((SELECT j.status = 'processing' AND j.fencing_token = s.fencing_token
                           FROM tenure.jobs j WHERE j.id = s.job_id), false)
     ORDER BY s.slot
     LIMIT $2::bigint + (SELECT count(*) FROM above)
       FOR NO KEY UPDATE OF s SKIP LOCKED
)
SELECT said.max_running, locked.slot
  FROM said
  LEFT JOIN (SELECT slot FROM free UNION ALL SELECT slot FROM above) locked ON true
