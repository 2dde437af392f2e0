-- bury: a queued job that no worker can run goes to the dead letters: none knew its kind for too long, or Postgres
-- refuses each claim of it.
--
--   $1 job id  $2 the longest wait for a worker that knows the kind, in seconds; NULL: it is not about the kind
--   $3 the error  $4 its category
--
-- No row: the job has not waited that long since it was first put off, or is no longer queued, or a worker
-- that was seen in the last minute knows the kind and is only busy.
-- Made of parts: `scripts/statement bury` prints it whole.
WITH locked AS MATERIALIZED (
    SELECT 0 AS ord, 'failed' AS verdict, $3::text AS error, $4::text AS category,
           0::float8 AS delay_s, NULL::text AS path, NULL::text AS reason, NULL::text AS recovered_by,
           NULL::interval AS silence,
-- include job/parts/locked_job.sql
      FROM tenure.jobs j
     WHERE j.id = $1
       AND j.status = 'queued'
       AND ($2::float8 IS NULL
         OR j.put_off_since < statement_timestamp() - $2::float8 * interval '1 second'
        AND NOT EXISTS (
            SELECT FROM tenure.workers w
             WHERE w.last_seen_at > statement_timestamp() - interval '1 minute'
               AND j.queue = ANY (w.queues)
               AND (w.kinds IS NULL OR j.kind = ANY (w.kinds))))
       FOR UPDATE OF j
)
-- include job/parts/end_attempt.sql
