-- claim_skip: claim.sql for those jobs whose rows no other transaction has locked. The worker tries the others again
-- later.
--
--   $1 to $7 as in claim.sql
--
-- Made of parts: `scripts/statement claim_skip` prints it whole.
-- include job/parts/claim_set.sql
 WHERE j.id = ANY (ARRAY (
           SELECT free.id FROM tenure.jobs free WHERE free.id = ANY ($1::uuid[])
            ORDER BY free.id FOR NO KEY UPDATE SKIP LOCKED))
-- include job/parts/claim_unlimited.sql
-- include job/parts/claim_won.sql
