-- claim_limited: claim_skip.sql for a queue whose row this transaction has locked (lock_queue.sql). The transaction has
-- counted the queue's room (queue_room.sql), and notes the jobs that it claims (take_slots.sql).
--
--   $1 to $7 as in claim.sql
--
-- Made of parts: `scripts/statement claim_limited` prints it whole.
-- include job/parts/claim_set.sql
 WHERE j.id = ANY (ARRAY (
           SELECT free.id FROM tenure.jobs free WHERE free.id = ANY ($1::uuid[])
            ORDER BY free.id FOR NO KEY UPDATE SKIP LOCKED))
   AND NOT EXISTS (SELECT FROM tenure.queues q WHERE q.queue = $2 AND q.paused_at IS NOT NULL)
-- include job/parts/claim_won.sql
