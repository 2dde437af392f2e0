-- claim_limited: claim_skip.sql for a queue with a limit. Second and last statement of its transaction: it claims at
-- most as many jobs as slots that the transaction has locked (lock_slots.sql) are free, and notes the jobs in them.
--
--   $1 to $7 as in claim.sql  $8 the locked slots
--
-- One row a job that is now ours; one row with a NULL id: none is. In each, how many slots of the queue were free
-- before. No row: the queue has no limit.
-- Lock, then look: this statement's snapshot is younger than the locks, so it shows what any other claim has put into
-- a locked slot, and the limit, which changes only while every slot is locked (hold_slots.sql). In the statement that
-- locks, a slot that another claim took between snapshot and lock would look free, and two jobs would run in it.
-- Jobs above a lowered limit move into free slots first. No job starts while a slot above the limit stays taken:
-- another claim may be moving its job, or no slot is free for it.
-- Made of parts: `scripts/statement claim_limited` prints it whole.
WITH slots AS MATERIALIZED (
    SELECT s.slot, s.job_id, s.fencing_token, s.slot = ANY ($8::int[]) AS is_locked,
           -- Not a join: the planner could walk one the wrong way round, over all jobs.
           coalesce((SELECT j.status = 'processing' AND j.fencing_token = s.fencing_token
                       FROM tenure.jobs j WHERE j.id = s.job_id), false) AS is_taken
      FROM tenure.queue_slots s
     WHERE s.queue = $2
), said AS MATERIALIZED (
    SELECT q.max_running, greatest(0, q.max_running - (SELECT count(*) FROM slots WHERE is_taken)) AS room
      FROM tenure.queues q
     WHERE q.queue = $2 AND q.max_running IS NOT NULL
), free AS MATERIALIZED (
    SELECT slot, row_number() OVER (ORDER BY slot) AS n
      FROM slots
     WHERE is_locked AND NOT is_taken AND slot <= (SELECT max_running FROM said)
), above AS MATERIALIZED (
    SELECT slot, job_id, fencing_token, is_locked, row_number() OVER (ORDER BY NOT is_locked, slot) AS n
      FROM slots
     WHERE is_taken AND slot > (SELECT max_running FROM said)
), moves AS MATERIALIZED (
    SELECT free.slot, above.slot AS from_slot, above.job_id, above.fencing_token
      FROM free JOIN above USING (n)
     WHERE above.is_locked
), fit AS MATERIALIZED (
    SELECT CASE WHEN (SELECT count(*) FROM above) = (SELECT count(*) FROM moves)
                THEN (SELECT count(*) FROM free) - (SELECT count(*) FROM moves)
                ELSE 0
           END AS jobs
), won AS (
-- include job/parts/claim_set.sql
 WHERE j.id = ANY (ARRAY (
           SELECT due.id FROM tenure.jobs due
            WHERE due.id = ANY ($1::uuid[])
              AND due.queue = $2 AND due.kind = $3
              AND due.status = 'queued' AND due.scheduled_at <= statement_timestamp()
            ORDER BY due.id
            LIMIT (SELECT jobs FROM fit)
              FOR NO KEY UPDATE SKIP LOCKED))
   AND NOT EXISTS (SELECT FROM tenure.queues q WHERE q.queue = $2 AND q.paused_at IS NOT NULL)
-- include job/parts/claim_won.sql
), noted AS (
    UPDATE tenure.queue_slots s
       SET job_id = u.job_id, fencing_token = u.fencing_token
      FROM (SELECT slot, job_id, fencing_token FROM moves
             UNION ALL
            SELECT from_slot, NULL, NULL FROM moves
             UNION ALL
            SELECT free.slot, w.id, w.fencing_token
              FROM (SELECT id, fencing_token, row_number() OVER () + (SELECT count(*) FROM moves) AS n FROM won) w
              JOIN free USING (n)) u
     WHERE s.queue = $2 AND s.slot = u.slot
)
SELECT won.*, said.room
  FROM said
  LEFT JOIN won ON true
