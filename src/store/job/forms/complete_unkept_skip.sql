-- complete_unkept_skip: complete_unkept.sql for completions whose fast path met a lock, and for batches that name a job
-- twice: as complete_skip.sql is for complete.sql.
--
--   $1 ids  $2 tokens  $3 claim ids, one of each for each completion  $4 as in complete_unkept.sql
--
-- Made of parts: `scripts/statement complete_unkept_skip` prints it whole.
WITH done AS (
    DELETE FROM tenure.jobs j
     WHERE j.id = ANY (ARRAY(
           SELECT mine.id
             FROM unnest((SELECT $1::uuid[]), $2::bigint[], $3::uuid[]) AS u(id, token, claim_id)
             JOIN tenure.jobs mine ON mine.id = u.id
            WHERE mine.id = ANY ((SELECT $1::uuid[])::uuid[])
              AND mine.fencing_token = u.token
              AND mine.claim_id = u.claim_id
              AND mine.status = 'processing'
            ORDER BY mine.id
              FOR UPDATE OF mine SKIP LOCKED))
    RETURNING j.id, j.claim_id
)
-- include job/parts/complete_forget.sql
