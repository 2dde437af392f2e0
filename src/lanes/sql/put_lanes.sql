-- put_lanes: give a queue lanes, or change their settings.
--
--   $1 queue  $2 jobs of a lane that may run  $3 tokens a second of a lane  $4 its most tokens  $5, $6 the same of the queue
--   $7 whether lanes take turns  $8 whether lanes are ordered  $9 how long to wait for each lock, for example '300ms'
--   $10 who acts: by what, and the name  $11 whether each new job must name a lane
--
-- See migrations/functions/lanes/put_lanes.sql, and require_lanes.sql beside it.
WITH before AS MATERIALIZED (
    SELECT running, rate, burst, queue_rate, queue_burst, turns, ordered, required FROM tenure.lane_settings
     WHERE queue = $1 AND removed_at IS NULL
), put AS MATERIALIZED (
    SELECT tenure.put_lanes($1, $2, $3, $4, $5, $6, $7, $8, $9), tenure.require_lanes($1, $11)
)
INSERT INTO tenure.audit (via, actor, act, queue, details)
SELECT ($10::text[])[1], ($10::text[])[2], 'put_lanes', $1,
       jsonb_strip_nulls(jsonb_build_object('running', $2::int, 'rate', $3::float8, 'queue_rate', $5::float8,
                                            'turns', $7::boolean, 'ordered', $8::boolean, 'required', $11::boolean))
  FROM put LEFT JOIN before b ON true
 WHERE (b.running, b.rate, b.burst, b.queue_rate, b.queue_burst, b.turns, b.ordered, b.required)
       IS DISTINCT FROM ($2::int, $3::float8, $4::float8, $5::float8, $6::float8, $7::boolean, $8::boolean, $11::boolean)
