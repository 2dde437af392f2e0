-- claim_skip: by those of a list of ids whose rows nobody has locked. Of the others nothing is known: they are
-- asked for again, later.
 WHERE j.id = ANY (ARRAY (
           SELECT free.id FROM tenure.jobs free WHERE free.id = ANY ($1::uuid[])
            ORDER BY free.id FOR NO KEY UPDATE SKIP LOCKED))
