-- fence: lets the caller's transaction commit only if its attempt owns the job, from here to the commit.
--
-- Called by programs that run a job (docs/sql.md), with their rights: postgres/roles.sql grants it to workers. The
-- library has fence.sql and lock_job.sql.
-- At READ COMMITTED it is the last call, writes a sign of life, and the row's lock lasts only to the commit. Above, it
-- is the first call, and its KEY SHARE lock lets the worker's heartbeats pass. Either lock keeps every reset and every
-- other end of the attempt waiting until this transaction ends.
CREATE OR REPLACE FUNCTION tenure.fence(job uuid, token bigint, claim uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    lease interval;
BEGIN
    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        -- As fence.sql.
        UPDATE tenure.jobs j
           SET last_activity_at = clock_timestamp()
         WHERE j.id = fence.job AND j.fencing_token = fence.token AND j.claim_id = fence.claim
           AND j.status = 'processing'
        RETURNING j.stale_after INTO lease;
        IF NOT FOUND THEN
            PERFORM tenure.raise_lost(job, token, claim);
        END IF;
        PERFORM tenure.limit_idle(greatest(interval '1 second', least(interval '10 seconds', lease / 4)));
    ELSE
        -- As lock_job.sql. What ends an attempt locks the row FOR UPDATE: if it came after the snapshot, Postgres
        -- refuses this lock (40001); afterwards it waits. Progress does neither.
        SELECT j.stale_after INTO lease
          FROM tenure.jobs j
         WHERE j.id = fence.job AND j.fencing_token = fence.token AND j.claim_id = fence.claim
           AND j.status = 'processing'
           FOR KEY SHARE OF j;
        IF NOT FOUND THEN
            PERFORM tenure.raise_lost(job, token, claim);
        END IF;
        PERFORM tenure.limit_idle(greatest(interval '1 second', lease / 4));
    END IF;
END $$;

REVOKE ALL ON FUNCTION tenure.fence(uuid, bigint, uuid) FROM PUBLIC;

COMMENT ON FUNCTION tenure.fence(uuid, bigint, uuid) IS
'Lets this transaction commit only if the attempt owns its job, from here to the commit.
READ COMMITTED: call it last; it is also a sign of life. REPEATABLE READ and SERIALIZABLE: call it first, so that no
work is in vain.
job, token, claim: TENURE_JOB_ID, TENURE_FENCING_TOKEN and TENURE_CLAIM_ID.
Call it outside a savepoint, and let its error end the transaction: a program that rolls back to a savepoint and commits
commits what it wrote before the savepoint.
From here on the transaction may sit idle for a quarter of the job''s stale_after, and for at most 10 s at READ
COMMITTED.
Errors: TN001 the job is another''s, TN003 an argument is NULL, TN007 this attempt has completed it in an earlier
transaction, TN008 this transaction has completed it, 40001 begin again.';
