-- put_schedule: create or change a schedule.
--
--   $1 name  $2 cron  $3 time zone  $4 queue  $5 kind  $6 payload (JSON text)  $7 tick field  $8 max_attempts
--   $9 missed  $10 its first tick  $11 whether it must be new  $12 when it must have been changed last, or NULL
--   $13 overlap  $14 who acts: by what, and the name  $15 options of its jobs (a JSON object, as text) or NULL
--
-- One row, unless $11 or $12 does not hold: then nothing is changed. Two calls for one schedule wait for each other's
-- row, so of two changes of the same version one gets no row. If the ticks are the same as before, the next tick
-- stays: a program that puts its schedules at every start moves none. A paused schedule stays paused.
WITH before AS MATERIALIZED (
    SELECT * FROM tenure.schedules WHERE name = $1
), put AS (
    INSERT INTO tenure.schedules AS s (name, cron, time_zone, queue, kind, payload, tick_field, max_attempts, missed, next_at,
                                       overlap, options)
    SELECT $1::text, $2::text, $3::text, $4::text, $5::text, $6::text::jsonb, $7::text, $8::int, $9::text, $10::timestamptz,
           $13::text, $15::text::jsonb
     WHERE $12::timestamptz IS NULL OR EXISTS (SELECT FROM tenure.schedules WHERE name = $1)
        ON CONFLICT (name) DO UPDATE
       SET cron = excluded.cron, time_zone = excluded.time_zone, queue = excluded.queue, kind = excluded.kind,
           payload = excluded.payload, tick_field = excluded.tick_field, max_attempts = excluded.max_attempts,
           missed = excluded.missed, overlap = excluded.overlap, options = excluded.options, changed_at = clock_timestamp(),
           next_at = CASE WHEN (s.cron, s.time_zone) = (excluded.cron, excluded.time_zone) THEN s.next_at
                          ELSE excluded.next_at END
     WHERE NOT $11 AND ($12 IS NULL OR s.changed_at = $12)
    RETURNING s.*, xmax = 0 AS is_new
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue, subject, details)
    SELECT ($14::text[])[1], ($14::text[])[2], 'put_schedule', p.queue, p.name,
           jsonb_build_object('cron', p.cron, 'time_zone', p.time_zone, 'kind', p.kind, 'is_new', p.is_new)
      FROM put p LEFT JOIN before b ON true
     WHERE (p.cron, p.time_zone, p.queue, p.kind, p.payload, p.tick_field, p.max_attempts, p.missed, p.overlap, p.options)
           IS DISTINCT FROM (b.cron, b.time_zone, b.queue, b.kind, b.payload, b.tick_field, b.max_attempts, b.missed, b.overlap,
                             b.options)
)
SELECT next_at, paused_at, is_new FROM put
