-- limit_queue: set how many jobs of a queue may run, and how many may wait, in the whole fleet.
--
--   $1 queue  $2 whether to change max_running  $3 to what (NULL: no limit)
--   $4 whether to change max_queued  $5 to what (NULL: no limit)  $6 who acts: by what, and the name
--
-- Jobs that run already count: they get slots. If claims were under way at this moment, a few jobs more than the limit
-- may run, until as many have ended.
WITH before AS MATERIALIZED (
    SELECT max_running, max_queued FROM tenure.queues WHERE queue = $1
), said AS (
    INSERT INTO tenure.queues AS q (queue, max_running, max_queued)
    VALUES ($1, CASE WHEN $2 THEN $3::int END, CASE WHEN $4 THEN $5::bigint END)
        ON CONFLICT (queue) DO UPDATE
       SET max_running = CASE WHEN $2 THEN $3::int ELSE q.max_running END,
           max_queued  = CASE WHEN $4 THEN $5::bigint ELSE q.max_queued END
    RETURNING max_running, max_queued, paused_at
), runs AS (
    SELECT j.id, j.fencing_token, row_number() OVER (ORDER BY j.id)::int AS slot
      FROM tenure.jobs j
     WHERE j.queue = $1 AND j.status = 'processing' AND $2 AND $3::int IS NOT NULL
), slots AS (
    INSERT INTO tenure.queue_slots AS s (queue, slot, job_id, fencing_token)
    SELECT $1, n, runs.id, runs.fencing_token
      FROM generate_series(1, greatest($3::int, (SELECT count(*)::int FROM runs))) AS n
      LEFT JOIN runs ON runs.slot = n
     WHERE $2 AND $3::int IS NOT NULL
        ON CONFLICT (queue, slot) DO UPDATE
       SET job_id = excluded.job_id, fencing_token = excluded.fencing_token
), spare AS (
    -- Those of an older, higher limit: each claim reads all.
    DELETE FROM tenure.queue_slots
     WHERE queue = $1 AND $2 AND slot > greatest(coalesce($3::int, 0), (SELECT count(*)::int FROM runs))
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue, details)
    SELECT ($6::text[])[1], ($6::text[])[2], 'limit_queue', $1, jsonb_build_object('max_running', s.max_running, 'max_queued', s.max_queued)
      FROM said s LEFT JOIN before b ON true
     WHERE (s.max_running, s.max_queued) IS DISTINCT FROM (b.max_running, b.max_queued)
)
SELECT max_running, max_queued, paused_at FROM said
