-- bury_unknown: a queued job whose kind no worker knew for too long goes to the dead letters.
--
--   $1 job id  $2 the longest wait in seconds  $3 the error
--
-- No row: the job has not waited that long since it was first put off, or is no longer queued, or a worker
-- that was seen in the last minute knows the kind and is only busy.
-- Made of parts: `scripts/statement bury_unknown` prints it whole.
WITH locked AS MATERIALIZED (
    SELECT 0 AS ord, 'failed' AS verdict, $3::text AS error, 'unknown_kind' AS category,
           0::float8 AS delay_s, NULL::text AS path, NULL::text AS reason, NULL::text AS recovered_by,
           NULL::interval AS silence,
-- include job/parts/locked_job.sql
      FROM tenure.jobs j
     WHERE j.id = $1
       AND j.status = 'queued'
       AND j.put_off_since < statement_timestamp() - $2::float8 * interval '1 second'
       AND NOT EXISTS (
           SELECT FROM tenure.workers w
            WHERE w.last_seen_at > statement_timestamp() - interval '1 minute'
              AND j.queue = ANY (w.queues)
              AND (w.kinds IS NULL OR j.kind = ANY (w.kinds)))
       FOR UPDATE OF j
)
-- include job/parts/end_attempt.sql
