-- claim_limited: claim_skip.sql for a queue with a limit: at most as many jobs as slots of the queue are free.
--
--   $1 to $7 as in claim.sql
--
-- One row a claimed job, or one row without a job. The last column says how many slots are still free; NULL: the queue has
-- no limit.
--
-- A slot is taken while its job runs under its token. Two claims at once may see the same slot free: each locks the slots
-- that it takes, passes over those that the other has locked, and over those that have changed since its snapshot. So
-- neither waits, and no slot is taken twice.
-- After a limit was lowered, jobs may run in slots above it, which count. Then only the claim that has locked the first
-- free slot may go on: two would each count the same of those jobs.
-- Jobs and slots are looked up one by one, in no plain join: the planner could walk one the wrong way round, over all jobs,
-- or each slot for each slot.
-- Made of parts: `scripts/statement claim_limited` prints it whole.
WITH slots AS MATERIALIZED (
    SELECT s.slot, s.job_id, s.fencing_token,
           coalesce((SELECT j.status = 'processing' AND j.fencing_token = s.fencing_token
                       FROM tenure.jobs j WHERE j.id = s.job_id), false) AS taken
      FROM tenure.queue_slots s
     WHERE s.queue = $2
), room AS MATERIALIZED (
    SELECT q.max_running,
           CASE WHEN q.paused_at IS NULL THEN greatest(0, q.max_running - s.taken)::int ELSE 0 END AS free,
           s.first, s.highest > q.max_running AS was_lowered
      FROM tenure.queues q,
           (SELECT count(*) FILTER (WHERE taken) AS taken, min(slot) FILTER (WHERE NOT taken) AS first,
                   max(slot) FILTER (WHERE taken) AS highest FROM slots) s
     WHERE q.queue = $2 AND q.max_running IS NOT NULL
), wanted AS MATERIALIZED (
    SELECT least(free, cardinality($1::uuid[])) AS slots FROM room
), locked AS MATERIALIZED (
    SELECT s.slot
      FROM (SELECT slot, job_id, fencing_token FROM slots
             WHERE NOT taken AND slot <= (SELECT max_running FROM room) ORDER BY slot) seen
     CROSS JOIN LATERAL (
           SELECT s.slot FROM tenure.queue_slots s
            WHERE s.queue = $2 AND s.slot = seen.slot
              AND s.job_id IS NOT DISTINCT FROM seen.job_id AND s.fencing_token IS NOT DISTINCT FROM seen.fencing_token
              FOR NO KEY UPDATE SKIP LOCKED) s
     LIMIT coalesce((SELECT slots FROM wanted), 0)
), own AS MATERIALIZED (
    SELECT slot, row_number() OVER (ORDER BY slot) AS n
      FROM locked
     WHERE (SELECT was_lowered IS NOT TRUE OR first = (SELECT min(slot) FROM locked) FROM room)
), claimed AS (
-- include job/parts/claim_set.sql
 WHERE j.id = ANY (ARRAY (
           SELECT due.id FROM tenure.jobs due
            WHERE due.id = ANY ($1::uuid[]) AND due.status = 'queued' AND due.scheduled_at <= statement_timestamp()
            ORDER BY due.id
            LIMIT (SELECT count(*) FROM own)
              FOR NO KEY UPDATE SKIP LOCKED))
-- include job/parts/claim_won.sql
), took AS (
    UPDATE tenure.queue_slots s
       SET job_id = c.id, fencing_token = c.fencing_token
      FROM (SELECT id, fencing_token, row_number() OVER (ORDER BY id) AS n FROM claimed) c
      JOIN own ON own.n = c.n
     WHERE s.queue = $2 AND s.slot = own.slot
)
SELECT c.*,
       -- Others hold the slots that this claim wanted.
       CASE WHEN (SELECT count(*) FROM own) < (SELECT slots FROM wanted) THEN 0
            ELSE (SELECT free - (SELECT count(*) FROM claimed)::int FROM room) END AS room
  FROM (SELECT) AS one LEFT JOIN claimed c ON true
