-- complete_unkept_one: complete_unkept.sql for one job, as complete_one.sql is for complete.sql. Also the last
-- statement of a user's transaction, which must be rolled back if the answer has no row.
--
--   $1 id  $2 token  $3 claim id  $4 as in complete_unkept.sql
--   $5 how long to wait for the row's lock, for example '100ms'; NULL: the session's limit, as in a user's transaction
--
-- Made of parts: `scripts/statement complete_unkept_one` prints it whole.
WITH done AS (
    DELETE FROM tenure.jobs j
     WHERE (SELECT set_config('lock_timeout', coalesce($5, current_setting('lock_timeout')), true)) IS NOT NULL
       AND j.id = $1
       AND j.fencing_token = $2
       AND j.claim_id = $3
       AND j.status = 'processing'
    RETURNING j.id, j.claim_id
)
-- include job/parts/complete_forget.sql
