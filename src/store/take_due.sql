-- take_due: jobs whose message shall be published now, under a new dispatch each.
--
--   $1 row limit  $2 seconds until they are taken again if nobody confirms
--
-- Committed before anything is published. If the publisher dies, the next relay publishes a later
-- dispatch; two messages of one job are harmless. SKIP LOCKED: N relays share the work.
WITH due AS MATERIALIZED (
    SELECT id FROM tenure.jobs
     WHERE publish_at <= statement_timestamp() AND status = 'queued'
     ORDER BY publish_at
     LIMIT $1
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE tenure.jobs j
   SET dispatch = j.dispatch + 1, publish_at = clock_timestamp() + $2::float8 * interval '1 second'
  FROM due
 WHERE j.id = due.id
RETURNING j.id, j.queue, j.kind, j.dispatch, j.fencing_token, j.clear_reason, j.trace_context
