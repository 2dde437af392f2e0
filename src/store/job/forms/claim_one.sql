-- claim_one: claim.sql for one job, in a third of the time, for an idle worker.
--
--   $1 id  $2 to $7 as in claim.sql
--
-- Made of parts: `scripts/statement claim_one` prints it whole.
-- include job/parts/claim_set.sql
 WHERE (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL
   AND j.id = $1
-- include job/parts/claim_unlimited.sql
-- include job/parts/claim_won.sql
