-- once: begins an effect that must happen once for its job: true, and the caller's transaction does it; false, and an
-- earlier one did.
--
-- Called by programs that run a job (docs/sql.md), with their rights: postgres/roles.sql grants it to workers. The
-- library has once.sql.
-- Two attempts at once: the second waits for the first one's commit at the effect's row, and answers false; or true, if
-- the first rolled back. The row and the effect are one commit, so a lost answer of it is asked for by calling again.
CREATE OR REPLACE FUNCTION tenure.once(job uuid, token bigint, claim uuid, key text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    lease interval;
BEGIN
    IF tenure.is_key(once.key) IS NOT TRUE THEN
        RAISE EXCEPTION 'key % is not a valid key', coalesce(to_json(left(once.key, 80))::text, 'NULL')
            USING ERRCODE = 'TN003', DETAIL = 'A key has 1 to 512 bytes, and no control characters.',
                  HINT = 'Name the effect within its job, as in charge-card.';
    END IF;
    -- KEY SHARE, at each isolation level: from here to the commit no session can end the attempt.
    SELECT j.stale_after INTO lease
      FROM tenure.jobs j
     WHERE j.id = once.job AND j.fencing_token = once.token AND j.claim_id = once.claim AND j.status = 'processing'
       FOR KEY SHARE OF j;
    IF NOT FOUND THEN
        PERFORM tenure.raise_lost(once.job, once.token, once.claim);
    END IF;
    PERFORM tenure.limit_idle(greatest(interval '1 second', lease / 4));
    -- A second attempt waits here for the first one's commit.
    INSERT INTO tenure.effects (job_id, key, fencing_token, result)
    VALUES (once.job, once.key, once.token, 'null')
        ON CONFLICT (job_id, key) DO NOTHING;
    RETURN FOUND;
END $$;

REVOKE ALL ON FUNCTION tenure.once(uuid, bigint, uuid, text) FROM PUBLIC;

COMMENT ON FUNCTION tenure.once(uuid, bigint, uuid, text) IS
'Begins an effect that must happen once for its job, however often the job is tried. True: do it in this transaction,
whose commit records both. False: an earlier transaction did it; tenure.once_result returns what it stored.
Call it before the effect; at REPEATABLE READ and SERIALIZABLE first of all. It is a fence for the whole transaction.
key: the effect''s name within the job, 1 to 512 bytes. Other arguments, idle limit and errors: as tenure.fence.';
