-- put_off: notes that the job's message exists, but waits: for a worker that knows the kind, or until an old
-- handler in this process leaves its thread.
--
--   $1 job id  $2 seconds until the message comes again
--   $3 the same, if another live worker of its queue knows its kind and takes jobs; NULL: it waits for an old handler
--
-- Keeps the relay from taking the message for lost, and records when a worker without the kind first put the job off.
-- Returns the seconds; no row: the job is no longer queued.
WITH wait AS (
    SELECT CASE WHEN $3::float8 IS NOT NULL
                 AND EXISTS (SELECT FROM tenure.workers w
                              WHERE w.last_seen_at > statement_timestamp() - 3 * w.renew_every
                                AND w.draining_at IS NULL AND w.not_ready IS NULL
                                AND w.queues @> ARRAY[j.queue]
                                AND (w.kinds IS NULL OR j.kind = ANY (w.kinds)))
                THEN $3::float8 ELSE $2::float8 END AS seconds
      FROM tenure.jobs j
     WHERE j.id = $1
)
UPDATE tenure.jobs
   SET published_at  = clock_timestamp() + wait.seconds * interval '1 second',
       put_off_since = CASE WHEN $3::float8 IS NULL THEN put_off_since ELSE coalesce(put_off_since, clock_timestamp()) END
  FROM wait
 WHERE id = $1 AND status = 'queued' AND published_at IS NOT NULL
RETURNING wait.seconds
