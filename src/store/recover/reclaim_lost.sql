-- reclaim_lost: jobs whose message no longer exists, or never did. The relay republishes them, each under a new
-- dispatch.
--
--   $1 queue  $2 published before  $3 row limit  $4 worker id of the relay  $5 a snapshot
--   $6 ids: jobs to pass over, as Postgres refuses to write them  $7 ids: no others; NULL: any
--
-- Only rows that the snapshot sees: a row whose transaction was not yet committed then is too new. (A row's xmin has 32
-- of its transaction's 64 bits, and is less than 2^31 transactions old. That of a savepoint counts as committed.)
-- As in take_due.sql, the rows count as published from here on, and no join comes between them and their ids. The jobs
-- that have waited longest are taken first, and returned in the order in which they were due.
WITH lost AS MATERIALIZED (
    SELECT id, fencing_token, published_at
      FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS newest) n, tenure.jobs
     WHERE queue = $1 AND published_at < $2 AND status = 'queued' AND scheduled_at <= statement_timestamp()
       AND pg_visible_in_snapshot((newest - ((newest - xmin::text::bigint) & 4294967295))::text::xid8, $5::text::pg_snapshot)
       AND id <> ALL ($6::uuid[]) AND ($7::uuid[] IS NULL OR id = ANY ($7::uuid[]))
     ORDER BY published_at
     LIMIT $3
       FOR NO KEY UPDATE SKIP LOCKED
), reclaimed AS (
    UPDATE tenure.jobs j
       SET dispatch = j.dispatch + 1, published_at = clock_timestamp(), clear_reason = 'no worker took its message in time'
     WHERE j.id = ANY (ARRAY(SELECT id FROM lost))
    RETURNING j.id, j.queue, j.kind, j.dispatch, j.clear_reason, j.trace_context, j.scheduled_at
), noted AS (
    INSERT INTO tenure.recovery_events (event, path, job_id, fencing_token, silence, reason, recovered_by)
    SELECT 'republished', 'relay', id, fencing_token, statement_timestamp() - published_at,
           'no worker took its message in time', $4
      FROM lost
)
SELECT id, queue, kind, dispatch, clear_reason, trace_context FROM reclaimed ORDER BY scheduled_at, id
