-- tick: move the next ticks of schedules forward, and enqueue the jobs of the due ticks. All of it or nothing.
--
--   $1 names  $2 of each the tick that was due  $3 the next tick; NULL: no tick will come, and the schedule pauses
--   $4 ids of the new jobs  $5 the tick of each, in order  $6 the place of its schedule in $1, from 1
--   $7 whether to pass over rows that are locked, rather than to wait for them
--
-- One row a schedule whose tick was moved: its place and its queue. Of several workers that saw the same tick, the first
-- moves it; the others wait for the row, find another tick in it, and change nothing. Nor does a worker that lost the
-- answer and asks again.
-- The relay publishes the jobs. A row that stays locked ends a statement that waits, and a job that Postgres refuses ends
-- any: the caller halves the schedules, down to the one.
-- The next tick only moves forward, unless the one that was due lies ahead: the clock has stepped back.
-- spread_s: the job is due within this time of the tick, each schedule at a moment of its own.
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::timestamptz[]) WITH ORDINALITY AS i(name, due, next, place)
), job AS MATERIALIZED (
    SELECT * FROM unnest($4::uuid[], $5::timestamptz[], $6::bigint[]) WITH ORDINALITY AS j(id, tick, place, n)
), held AS MATERIALIZED (
    SELECT s.name FROM tenure.schedules s
     WHERE NOT $7 AND s.name = ANY ($1) AND (SELECT set_config('lock_timeout', '250ms', true)) IS NOT NULL
     ORDER BY s.name FOR NO KEY UPDATE
), free AS MATERIALIZED (
    SELECT s.name FROM tenure.schedules s WHERE $7 AND s.name = ANY ($1) ORDER BY s.name FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
    UPDATE tenure.schedules s
       SET next_at = coalesce(i.next, s.next_at), paused_at = CASE WHEN i.next IS NULL THEN clock_timestamp() END,
           last_tick_at = coalesce(l.tick, s.last_tick_at), last_job_id = coalesce(l.id, s.last_job_id)
      FROM input i
      LEFT JOIN LATERAL (SELECT j.id, j.tick FROM job j WHERE j.place = i.place ORDER BY j.n DESC LIMIT 1) l ON true
     WHERE s.name = i.name AND s.next_at = i.due AND s.paused_at IS NULL
       AND coalesce(i.next > least(i.due, statement_timestamp()), true)
       AND s.name IN (SELECT name FROM held UNION ALL SELECT name FROM free)
    RETURNING i.place, s.queue, s.kind, s.payload, s.tick_field, s.max_attempts, s.options,
              statement_timestamp() + coalesce((s.options ->> 'spread_s')::float8, 0)
                  * (('x' || left(md5(s.name), 8))::bit(32)::bigint / 4294967296.0) * interval '1 second' AS due_at
), fresh AS (
    SELECT j.*, m.queue, m.kind, m.max_attempts, m.options, m.due_at,
           m.due_at + (m.options ->> 'expires_in_s')::float8 * interval '1 second' AS expires_at,
           CASE WHEN m.tick_field IS NULL THEN m.payload
                ELSE m.payload || jsonb_build_object(m.tick_field,
                     to_char(j.tick AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) END AS payload
      FROM moved m JOIN job j ON j.place = m.place
), tagged AS (
    INSERT INTO tenure.job_tags (job_id, tag)
    SELECT f.id, t.tag FROM fresh f CROSS JOIN LATERAL jsonb_array_elements_text(f.options -> 'tags') AS t(tag)
), expiring AS (
    INSERT INTO tenure.job_expiries (at, job_id)
    SELECT greatest(f.expires_at, clock_timestamp()), f.id FROM fresh f WHERE f.expires_at IS NOT NULL
), created AS (
    INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, publish_at, lane, priority, not_after,
                             expires_as)
    SELECT f.id, f.queue, f.kind, f.payload, f.max_attempts, f.due_at, f.due_at, f.options ->> 'lane',
           (f.options ->> 'priority')::smallint, f.expires_at, f.options ->> 'expires_as'
      FROM fresh f
     ORDER BY f.n
)
SELECT place, queue FROM moved
