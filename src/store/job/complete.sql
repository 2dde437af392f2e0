-- complete: jobs are done; their rows move to the history.
--
--   $1 ids (sorted, no duplicates)  $2 the tokens among them  $3 claim ids  $4 outputs (JSON text), or NULL: none
--
-- One row a completed job. For a job without a row, ask settled_as.sql: a repeated completion under the same claim is
-- the same completion; any other one comes from a stale worker.
-- The claim of a row is compared with the one at its id's place: the ids are sorted, and none comes twice.
-- One table and no join, as in claim.sql. The fast path: one pass over the rows. A handler's transaction may hold its
-- row for long, and must not hold up the completions of all other jobs: after 100 ms the statement gives up (55P03),
-- and complete_skip.sql completes the free rows. The limit ends with the statement, which is a transaction by itself.
-- The limit also ends any deadlock long before the server would look for one.
-- tenure.completes spares the trigger of groups a look into the history for each job: this transaction only completes.
-- width_bucket finds the place of an id in the sorted array by halves: array_position compares half of the array for
-- each job, which takes 8 µs in a batch of 1,000.
-- Made of parts: `scripts/statement complete` prints it whole.
WITH done AS (
    DELETE FROM tenure.jobs j
     WHERE (SELECT set_config('lock_timeout', '100ms', true) || set_config('tenure.completes', 'on', true)) IS NOT NULL
-- include job/parts/complete_mine.sql
    RETURNING CASE WHEN $4::text[] IS NOT NULL
                   THEN ($4::text[])[width_bucket(j.id, $1::uuid[])] END AS output, j.*
)
-- include job/parts/complete_move.sql
