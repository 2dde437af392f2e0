-- hold: checks the fence, and keeps the job's row as it is until the transaction ends: the first call of a transaction
-- at REPEATABLE READ or SERIALIZABLE that ends with tenure.complete.
--
-- Called by programs that run a job (docs/sql.md), with their rights: postgres/roles.sql grants it to workers.
-- Without it, a heartbeat after the snapshot would make Postgres refuse the completion (40001).
CREATE OR REPLACE FUNCTION tenure.hold(job uuid, token bigint, claim uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    lease interval;
BEGIN
    -- NO KEY UPDATE stops the worker's own progress, too, which passes over a row that is locked: a progress write
    -- would change the row after the snapshot, and Postgres would refuse the completion.
    SELECT j.stale_after INTO lease
      FROM tenure.jobs j
     WHERE j.id = hold.job AND j.fencing_token = hold.token AND j.claim_id = hold.claim AND j.status = 'processing'
       FOR NO KEY UPDATE OF j;
    IF NOT FOUND THEN
        PERFORM tenure.raise_lost(job, token, claim);
    END IF;
    PERFORM tenure.limit_idle(greatest(interval '1 second', lease / 4));
END $$;

REVOKE ALL ON FUNCTION tenure.hold(uuid, bigint, uuid) FROM PUBLIC;

COMMENT ON FUNCTION tenure.hold(uuid, bigint, uuid) IS
'The first statement of a transaction at REPEATABLE READ or SERIALIZABLE that ends with tenure.complete: checks the
fence, and keeps the job''s row as it is until then. Progress, resets and cancellations of the job wait or pass by; keep
it short.
Arguments, idle limit and errors: as tenure.fence.';
