-- renew_foreign: the sign of life of a worker behind a gateway. No row: its row was deleted meanwhile.
--
--   $1 worker id  $2 probe subject, or NULL: it has no subscriber  $3 whether it drains
--
-- A worker that died right after its beat has no subscriber, either: others must go on probing it.
--
-- Returns the database's time.
UPDATE tenure.workers
   SET last_seen_at = clock_timestamp(), suspected_at = NULL, probe_subject = coalesce($2, probe_subject),
       draining_at = CASE WHEN $3 THEN coalesce(draining_at, clock_timestamp()) END
 WHERE worker_id = $1
RETURNING clock_timestamp() AS now
