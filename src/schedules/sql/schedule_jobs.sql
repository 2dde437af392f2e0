-- schedule_jobs: the latest jobs of a schedule, the newest first: those of its queue and kind with its payload.
--
--   $1 queue  $2 kind  $3 payload (JSON text)  $4 the field that gets the time of the tick, or NULL  $5 row limit
--   $6 times of ticks  $7 how many finished and how many dead jobs to look at, at most: the latest, and after each tick
--
-- No job names its schedule: a job that a producer enqueued with the same payload is among them.
-- The history has no index by queue. An id is time: a tick's job is looked for by primary key, among the jobs created
-- in the five minutes from the tick on (clocks may differ by two seconds), and a job of a run by hand among the latest.
-- Made of parts: `scripts/statement schedule_jobs` prints it whole.
WITH near AS (
    SELECT id FROM (SELECT id FROM tenure.jobs WHERE queue = $1 AND kind = $2 ORDER BY id DESC LIMIT $7) live
     UNION
    SELECT id FROM (SELECT id, queue, kind FROM tenure.dead_letter_jobs ORDER BY id DESC LIMIT $7) dead
     WHERE queue = $1 AND kind = $2
     UNION
    SELECT id FROM (SELECT id, queue, kind FROM tenure.job_history ORDER BY id DESC LIMIT $7) late
     WHERE queue = $1 AND kind = $2
     UNION
    SELECT f.id
      FROM unnest($6::timestamptz[]) AS t (tick)
     CROSS JOIN LATERAL (
           (SELECT id, queue, kind FROM tenure.job_history
             WHERE id >= tenure.id_of_time(t.tick - interval '2 seconds')
               AND id < tenure.id_of_time(t.tick + interval '5 minutes')
             ORDER BY id LIMIT $7)
            UNION ALL
           (SELECT id, queue, kind FROM tenure.dead_letter_jobs
             WHERE id >= tenure.id_of_time(t.tick - interval '2 seconds')
               AND id < tenure.id_of_time(t.tick + interval '5 minutes')
             ORDER BY id LIMIT $7)) f
     WHERE f.queue = $1 AND f.kind = $2
), latest AS MATERIALIZED (
    SELECT id, queue, kind, NULL::text AS payload, status, attempt, max_attempts, fencing_token, worker_id, created_at,
           scheduled_at, started_at, last_activity_at, finished_at, stage, progress, message, NULL::text AS output,
           last_error
      FROM near
      JOIN tenure.all_jobs USING (id)
     WHERE CASE WHEN $4::text IS NULL THEN payload = $3::text::jsonb
                ELSE payload @> ($3::text::jsonb - $4) AND jsonb_exists(payload, $4)
           END
     ORDER BY id DESC
     LIMIT $5
)
SELECT id, queue, kind, payload, status, attempt, max_attempts, fencing_token, worker_id, created_at,
       CASE WHEN at.is_held THEN coalesce(at.due_at, created_at) ELSE scheduled_at END AS scheduled_at, started_at,
       last_activity_at, finished_at, stage, progress, message, output, last_error,
       at.lane, at.priority, at.not_after, coalesce(at.is_held, false) AS is_held,
       ARRAY(SELECT t.tag FROM tenure.job_tags t WHERE t.job_id = j.id ORDER BY t.tag) AS tags
  FROM latest j
-- include read/parts/in_lane.sql
 ORDER BY id DESC
