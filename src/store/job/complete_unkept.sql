-- complete_unkept: jobs of kinds that keep no history are done; nothing stays of them but their keys.
--
--   $1 ids (sorted, no duplicates)  $2 the tokens among them  $3 claim ids
--   $4 the ids of those that may have earlier attempts or effects
--
-- One row a completed job. A job without a row was not ours, or an earlier completion under the same claim has deleted
-- it, and its answer was lost. settled_as.sql knows neither; the worker knows whether it has sent one before.
-- One pass over one table, by claim ids, and no wait of more than 100 ms for a lock: see complete.sql. Then
-- complete_unkept_skip.sql completes the free rows.
-- Made of parts: `scripts/statement complete_unkept` prints it whole.
WITH done AS (
    DELETE FROM tenure.jobs j
     WHERE (SELECT set_config('lock_timeout', '100ms', true) || set_config('tenure.completes', 'on', true)) IS NOT NULL
-- include job/parts/complete_mine.sql
    RETURNING j.id, j.claim_id
)
-- include job/parts/complete_forget.sql
