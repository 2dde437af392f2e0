-- set_lane: settings of one lane of a queue. NULL: as the queue's other lanes.
--
--   $1 queue  $2 lane  $3 whether to change the weight  $4 to what  $5 whether to change the limit  $6 to what
--   $7 who acts: by what, and the name
--
-- No row: the queue has no lanes. The relay looks at the lane at once.
WITH before AS MATERIALIZED (
    SELECT weight, running FROM tenure.lanes WHERE queue = $1 AND lane = $2
), settings AS (
    UPDATE tenure.lane_settings s SET changed_at = clock_timestamp()
     WHERE s.queue = $1 AND s.removed_at IS NULL
    RETURNING 1
), said AS (
    INSERT INTO tenure.lanes AS l (queue, lane, weight, running, next_at)
    SELECT $1, $2, CASE WHEN $3 THEN $4::float8 END, CASE WHEN $5 THEN $6::int END, clock_timestamp()
     WHERE EXISTS (SELECT FROM settings)
        ON CONFLICT (queue, lane) DO UPDATE
       SET weight  = CASE WHEN $3 THEN $4::float8 ELSE l.weight END,
           running = CASE WHEN $5 THEN $6::int ELSE l.running END,
           next_at = clock_timestamp()
    RETURNING l.weight, l.running
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue, subject, details)
    SELECT ($7::text[])[1], ($7::text[])[2], 'set_lane', $1, $2, jsonb_build_object('weight', s.weight, 'running', s.running)
      FROM said s LEFT JOIN before b ON true
     WHERE (s.weight, s.running) IS DISTINCT FROM (b.weight, b.running)
)
SELECT weight, running FROM said
