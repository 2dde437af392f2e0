-- doctor_lanes: what is wrong with lanes.
--
--   $1 queues, or NULL for all  $2 the age in seconds from which a look at a lane is overdue  $3 the same of a lane
--   that waits for its slots  $4 row limit
--
-- Rows: `lanes`: a queue with lanes. `none`: a queue without lanes with jobs that name one; `lane` is one of these.
-- `late`: a queue with a lane that nothing has looked at in time; `pid` is a session with an open transaction that has
-- written to lanes, if there is one. `blocked`: a lane whose first job is due and whose
-- slots are all taken; `job_id` has had one for longest, and `is_running` for `held_s`.
-- Reads the live jobs that name a lane, and the first job of each lane that may run no more.
WITH own AS MATERIALIZED (
    SELECT * FROM tenure.lane_settings s
     WHERE s.removed_at IS NULL AND ($1::text[] IS NULL OR s.queue = ANY ($1))
), full_ones AS MATERIALIZED (
    SELECT l.queue, l.lane, head.due_at
      FROM own s
      JOIN tenure.lanes l ON l.queue = s.queue AND l.turn IS NULL
     CROSS JOIN LATERAL (
           SELECT w.due_at FROM tenure.lane_jobs w
            WHERE w.queue = l.queue AND w.lane = l.lane AND w.place IS NOT NULL
            ORDER BY w.priority, w.place, w.arrival LIMIT 1) AS head
     WHERE coalesce(l.running, s.running, CASE WHEN s.ordered THEN 1 END)
           <= (SELECT count(*) FROM tenure.lane_slots t WHERE t.queue = l.queue AND t.lane = l.lane)
       AND head.due_at < statement_timestamp() - $3::float8 * interval '1 second'
       AND NOT EXISTS (SELECT FROM tenure.queues q WHERE q.queue = l.queue AND q.paused_at IS NOT NULL)
     ORDER BY head.due_at
     LIMIT $4
)
SELECT 'lanes' AS what, queue, NULL::text AS lane, 0::bigint AS jobs, NULL::float8 AS age_s, NULL::uuid AS job_id,
       NULL::bool AS is_running, NULL::float8 AS held_s, NULL::int AS pid
  FROM own
 UNION ALL
SELECT 'none', j.queue, min(j.lane), count(*), NULL, NULL, NULL, NULL, NULL
  FROM tenure.jobs j
 WHERE j.lane <> '' AND ($1::text[] IS NULL OR j.queue = ANY ($1))
   AND NOT EXISTS (SELECT FROM tenure.lane_settings s WHERE s.queue = j.queue)
 GROUP BY j.queue
 UNION ALL
SELECT 'late', queue, min(lane), count(*), extract(epoch FROM statement_timestamp() - min(at))::float8, NULL, NULL, NULL,
       (SELECT l.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
         WHERE l.relation = 'tenure.lanes'::regclass AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock')
           AND a.datname = current_database() AND (a.xact_start > statement_timestamp() - interval '2 seconds') IS NOT TRUE
         ORDER BY a.xact_start LIMIT 1)
  FROM (SELECT queue, lane, at FROM (SELECT * FROM tenure.lane_wakes ORDER BY at LIMIT 10000) AS w
         UNION ALL
        SELECT queue, lane, next_at FROM (SELECT * FROM tenure.lanes WHERE next_at IS NOT NULL
                                           ORDER BY next_at LIMIT 10000) AS l) AS looks (queue, lane, at)
 WHERE at < statement_timestamp() - $2::float8 * interval '1 second' AND ($1::text[] IS NULL OR queue = ANY ($1))
 GROUP BY queue
 UNION ALL
SELECT 'blocked', f.queue, f.lane, 0, extract(epoch FROM statement_timestamp() - f.due_at)::float8, holder.id,
       holder.status = 'processing', extract(epoch FROM statement_timestamp() - holder.since)::float8, NULL
  FROM full_ones f
  LEFT JOIN LATERAL (
       SELECT j.id, j.status, coalesce(j.started_at, j.scheduled_at) AS since
         FROM tenure.lane_slots t JOIN tenure.jobs j ON j.id = t.job_id
        WHERE t.queue = f.queue AND t.lane = f.lane
        ORDER BY coalesce(j.started_at, j.scheduled_at) LIMIT 1) AS holder ON true
