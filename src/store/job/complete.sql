-- complete: jobs are done; their rows move to the history.
--
--   $1 ids (sorted, no duplicates)  $2 the tokens among them  $3 claim ids  $4 outputs (JSON text), or NULL: none
--
-- Followed by complete_move.sql. One row a job completed. A job that is missing: ask settled_as.sql; a
-- repeated completion under the same claim is the same completion, anything else is a stale worker.
-- A claim id is of one claim of one job: a row whose claim is among these is owned by that very claim.
-- One table and no join, as in claim.sql. The fast path: one pass over the rows. A transaction of one handler may hold its row for long, and must
-- not hold up the completions of all others: after 100 ms the statement gives up (55P03), and
-- complete_locked.sql completes what is free. The limit ends with the statement, which is a transaction of
-- its own. It also ends any deadlock long before the server would look for one.
WITH done AS (
    DELETE FROM tenure.jobs j
     WHERE (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL
       AND j.id = ANY ($1::uuid[])
       AND j.fencing_token = ANY ($2::bigint[])
       AND j.claim_id = ANY ($3::uuid[])
       AND j.status = 'processing'
    RETURNING CASE WHEN $4::text[] IS NOT NULL
                   THEN ($4::text[])[array_position($1::uuid[], j.id)] END AS output, j.*
)
