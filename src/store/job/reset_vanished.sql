-- reset_vanished: the prober resets the jobs of processes that are gone.
--
--   $1 worker ids that did not answer on this look  $2 seconds between two looks
--   $3 scan_every in seconds  $4 stale_after in seconds  $5 worker id of the caller
--   $6 ids: jobs to pass over, as Postgres refuses to write them  $7 ids: no others; NULL: any
--
-- Both channels must agree, on two looks: the worker has missed two renewals of its row, and its subject has no
-- subscriber. A job's heartbeat also proves that its owner is alive.
-- The statement resets nothing while owners have time to write (a grace, or one that the next scan will start;
-- an open breaker), nor when more than half of the workers, and more than three, look gone at once: the workers
-- are then rarely the cause. The scanner resets the jobs after stale_after. Those behind gateways count by themselves:
-- anybody can say hello there under many names.
-- SKIP LOCKED: another prober holds the row; or a dead worker's transaction still holds it, for a while.
-- Made of parts: `scripts/statement reset_vanished` prints it whole.
WITH calm AS (
    SELECT ARRAY(SELECT language IS NOT NULL
                   FROM tenure.workers
                  WHERE last_seen_at > statement_timestamp() - interval '10 minutes' AND probe_subject IS NOT NULL
                  GROUP BY language IS NOT NULL
                 HAVING count(*) FILTER (WHERE last_seen_at < statement_timestamp() - 2 * renew_every)
                            > greatest(3, count(*) / 2)) AS but_for
      FROM tenure.scanner_state s
     WHERE coalesce(s.grace_until < statement_timestamp(), true)
       AND coalesce(s.server_started_at = pg_postmaster_start_time(), true)
       AND coalesce(s.last_scan_at > statement_timestamp() - 3 * $3::float8 * interval '1 second', true)
       AND coalesce(s.breaker_since < statement_timestamp() - $4::float8 * interval '1 second', true)
), vanished AS MATERIALIZED (
    SELECT w.worker_id, w.renew_every FROM tenure.workers w
     WHERE w.worker_id = ANY ($1::text[])
       AND w.last_seen_at < statement_timestamp() - 2 * w.renew_every
       AND w.suspected_at < statement_timestamp() - $2::float8 * interval '1 second'
       AND EXISTS (SELECT FROM calm WHERE (w.language IS NOT NULL) <> ALL (but_for))
     ORDER BY w.worker_id
       FOR UPDATE OF w SKIP LOCKED
), locked AS MATERIALIZED (
    SELECT format('worker lost: %s vanished: it missed two heartbeats and did not answer over NATS', j.worker_id)
               AS error,
           'lost' AS category,
           'vanished' AS path, 'its worker missed two heartbeats and did not answer over NATS' AS reason,
           $5::text AS recovered_by,
-- include job/parts/lost_job.sql
      FROM tenure.jobs j
      JOIN vanished ON vanished.worker_id = j.worker_id
     WHERE j.status = 'processing'
       AND j.last_activity_at < statement_timestamp() - 2 * vanished.renew_every
       AND j.id <> ALL ($6::uuid[]) AND ($7::uuid[] IS NULL OR j.id = ANY ($7::uuid[]))
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
)
-- include job/parts/end_attempt.sql
