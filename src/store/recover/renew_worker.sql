-- renew_worker: the sign of life of a registered process. No row: its row was deleted meanwhile.
--
--   $1 worker id  $2 probe subject  $3 what keeps it from taking jobs, or NULL  $4 whether it drains  $5 queues  $6 how
--      many jobs a message of each may name; NULL: it does not say
--
-- Returns the number of live workers: those that missed no renewals, without those behind gateways, which take no turns.
UPDATE tenure.workers
   SET last_seen_at = clock_timestamp(), suspected_at = NULL, probe_subject = $2, not_ready = $3,
       queues = $5, jobs_per_message = $6,
       draining_at = CASE WHEN $4 THEN coalesce(draining_at, clock_timestamp()) END
 WHERE worker_id = $1
RETURNING (SELECT count(*) FROM tenure.workers
            WHERE language IS NULL AND last_seen_at > statement_timestamp() - 1.4 * renew_every) AS workers
