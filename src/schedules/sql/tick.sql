-- tick: move a schedule's next tick forward, and enqueue the jobs of the due ticks. Both or neither.
--
--   $1 name  $2 the tick that was due  $3 the next tick; NULL: no tick will come, and the schedule pauses
--   $4 ids of the new jobs  $5 the tick of each, in order
--
-- One row if the tick was moved. Of several workers that saw the same tick, the first moves it; the others wait for the
-- row, find another tick in it, and change nothing. Nor does a worker that lost the answer and asks again.
-- The relay publishes the jobs. A row that stays locked ends the statement: the next look goes on.
-- The next tick only moves forward, unless the one that was due lies ahead: the clock has stepped back.
WITH moved AS (
    UPDATE tenure.schedules
       SET next_at = coalesce($3, next_at), paused_at = CASE WHEN $3::timestamptz IS NULL THEN clock_timestamp() END,
           last_tick_at = coalesce(($5::timestamptz[])[cardinality($5::timestamptz[])], last_tick_at),
           last_job_id = coalesce(($4::uuid[])[cardinality($4::uuid[])], last_job_id)
     WHERE name = $1 AND next_at = $2 AND paused_at IS NULL AND coalesce($3 > least($2, statement_timestamp()), true)
       AND (SELECT set_config('lock_timeout', '250ms', true)) IS NOT NULL
    RETURNING queue, kind, payload, tick_field, max_attempts, options,
              statement_timestamp() + (options ->> 'expires_in_s')::float8 * interval '1 second' AS expires_at
), tagged AS (
    INSERT INTO tenure.job_tags (job_id, tag)
    SELECT u.id, t.tag
      FROM moved m, unnest($4::uuid[]) AS u(id), jsonb_array_elements_text(m.options -> 'tags') AS t(tag)
), expiring AS (
    INSERT INTO tenure.job_expiries (at, job_id)
    SELECT greatest(m.expires_at, clock_timestamp()), u.id
      FROM moved m, unnest($4::uuid[]) AS u(id) WHERE m.expires_at IS NOT NULL
), created AS (
    INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, publish_at, lane, priority, not_after,
                             expires_as)
    SELECT u.id, m.queue, m.kind,
           CASE WHEN m.tick_field IS NULL THEN m.payload
                ELSE m.payload || jsonb_build_object(m.tick_field,
                     to_char(u.tick AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
           END, m.max_attempts, statement_timestamp(), statement_timestamp(), m.options ->> 'lane',
           (m.options ->> 'priority')::smallint, m.expires_at, m.options ->> 'expires_as'
      FROM moved m, unnest($4::uuid[], $5::timestamptz[]) AS u(id, tick)
)
SELECT queue FROM moved
