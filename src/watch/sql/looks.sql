-- looks: what those who watch jobs see of them. No row: the job does not exist.
--
--   $1 ids  $2 ordinals
--
-- Reads no payload.
SELECT u.ord, s.*
  FROM unnest((SELECT $1::uuid[]), $2::int[]) AS u(id, ord)
  JOIN LATERAL (
       SELECT j.queue, j.kind, j.status, j.attempt, j.max_attempts, j.stage, j.progress, j.message,
              NULL::text AS output, j.last_error, NULL::timestamptz AS finished_at
         FROM tenure.jobs j WHERE j.id = u.id
       UNION ALL
       SELECT h.queue, h.kind, h.status, h.attempt, h.max_attempts, h.stage, h.progress, h.message,
              h.output::text, h.last_error, h.finished_at
         FROM tenure.job_history h WHERE h.id = u.id
       UNION ALL
       SELECT d.queue, d.kind, 'failed', d.attempt, d.max_attempts, d.stage, d.progress, d.message,
              NULL, d.last_error, d.died_at
         FROM tenure.dead_letter_jobs d WHERE d.id = u.id
       LIMIT 1) s ON true
