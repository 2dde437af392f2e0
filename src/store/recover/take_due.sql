-- take_due: due jobs for the relay to publish, under a new dispatch each, in the order in which they are due.
--
--   $1 row limit  $2 ids: jobs to pass over, as Postgres refuses to write them  $3 ids: no others; NULL: any
--
-- Committed before the relay publishes, as an enqueue is: the rows count as published. If a publication fails,
-- unpublished.sql undoes this. If the publisher dies, reclaim_lost.sql finds its messages missing as it finds any lost
-- message, and the relay publishes them under a later dispatch; two messages of one job are harmless.
-- SKIP LOCKED: two relays share the work. No join: with one, if the table looks empty, the plan searches the whole list
-- of ids for each of them, 130 ms for a thousand.
WITH due AS MATERIALIZED (
    SELECT id FROM tenure.jobs
     WHERE publish_at <= statement_timestamp() AND status = 'queued' AND id <> ALL ($2::uuid[])
       AND ($3::uuid[] IS NULL OR id = ANY ($3::uuid[]))
     ORDER BY publish_at
     LIMIT $1
       FOR NO KEY UPDATE SKIP LOCKED
), taken AS (
    UPDATE tenure.jobs j
       SET dispatch = j.dispatch + 1, publish_at = NULL, published_at = clock_timestamp()
     WHERE j.id = ANY (ARRAY(SELECT id FROM due))
    RETURNING j.id, j.queue, j.kind, j.dispatch, j.clear_reason, j.trace_context, j.scheduled_at
)
SELECT id, queue, kind, dispatch, clear_reason, trace_context FROM taken ORDER BY scheduled_at, id
