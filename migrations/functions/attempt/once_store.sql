-- once_store: stores the result of the effect that the caller's transaction does: tenure.once returned true for its
-- key.
--
-- Called by programs that run a job (docs/sql.md), with their rights: postgres/roles.sql grants it to workers. The
-- library has effect_result.sql.
-- It changes no row but one that this very transaction has written (tenure.is_own): no caller changes a committed
-- result. Until this transaction ends, no session can end the attempt.
CREATE OR REPLACE FUNCTION tenure.once_store(job uuid, token bigint, claim uuid, key text, result jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    lease interval;
BEGIN
    PERFORM tenure.check_growth('the result', result);
    SELECT j.stale_after INTO lease
      FROM tenure.jobs j
     WHERE j.id = once_store.job AND j.fencing_token = once_store.token AND j.claim_id = once_store.claim
       AND j.status = 'processing'
       FOR KEY SHARE OF j;
    IF NOT FOUND THEN
        PERFORM tenure.raise_lost(once_store.job, once_store.token, once_store.claim);
    END IF;
    PERFORM tenure.limit_idle(greatest(interval '1 second', lease / 4));
    -- A committed result stays as it is.
    UPDATE tenure.effects e
       SET result = coalesce(once_store.result, 'null')
     WHERE e.job_id = once_store.job AND e.key = once_store.key AND e.fencing_token = once_store.token
       AND tenure.is_own(e.xmin);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this transaction has not begun effect %',
                        coalesce(to_json(left(once_store.key, 80))::text, 'NULL')
            USING ERRCODE = 'TN003', DETAIL = 'Only the transaction whose tenure.once returned true stores the result.',
                  HINT = 'Call tenure.once first, in the same transaction, and store nothing if it returns false.';
    END IF;
END $$;

REVOKE ALL ON FUNCTION tenure.once_store(uuid, bigint, uuid, text, jsonb) FROM PUBLIC;

COMMENT ON FUNCTION tenure.once_store(uuid, bigint, uuid, text, jsonb) IS
'Stores the result of an effect that this transaction does: tenure.once returned true for its key. Later attempts
read it with tenure.once_result.
Errors: those of tenure.fence; TN003 also if this transaction has not begun the effect: a committed result stays.';
