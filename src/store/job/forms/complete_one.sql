-- complete_one: complete.sql for one job, in less than half the time.
--
--   $1 id  $2 token  $3 claim id  $4 output (JSON text)
--
-- Made of parts: `scripts/statement complete_one` prints it whole.
WITH done AS (
    DELETE FROM tenure.jobs j
     WHERE (SELECT set_config('lock_timeout', '100ms', true) || set_config('tenure.completes', 'on', true)) IS NOT NULL
       AND j.id = $1
       AND j.fencing_token = $2
       AND j.claim_id = $3
       AND j.status = 'processing'
    RETURNING $4::text AS output, j.*
)
-- include job/parts/complete_move.sql
