-- raise_lost: raises the error of an attempt that does not own its job, and says why, and what to do. It never returns.
--
-- Called by tenure.complete, fence, hold, once, once_store and progress once they have found no row under the attempt's
-- fence; with the caller's rights, so that postgres/roles.sql grants it beside them. It is a statement of its own
-- within its caller: at READ COMMITTED it sees what was committed before it began, and so why the row was not there
-- once the caller had waited for it. STABLE: all that it reads is of that one moment.
CREATE OR REPLACE FUNCTION tenure.raise_lost(job uuid, token bigint, claim uuid) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    state text;
    hint  text := 'Roll back and end the program: the job has ended.';
BEGIN
    IF num_nulls(job, token, claim) > 0 THEN
        RAISE EXCEPTION '% is NULL', CASE WHEN job IS NULL THEN 'job' WHEN token IS NULL THEN 'token' ELSE 'claim' END
            USING ERRCODE = 'TN003', DETAIL = 'job, token and claim together name the attempt that calls.',
                  HINT = 'Pass TENURE_JOB_ID, TENURE_FENCING_TOKEN and TENURE_CLAIM_ID as the worker gave them.';
    END IF;
    IF raise_lost.claim::text = ANY (string_to_array(current_setting('tenure.completed', true), ' '))
       OR EXISTS (SELECT FROM tenure.job_history h
                   WHERE h.id = raise_lost.job AND h.claim_id = raise_lost.claim AND h.status = 'completed'
                     AND h.ended_xid = pg_current_xact_id_if_assigned()) THEN
        RAISE EXCEPTION 'this transaction has completed job % already', job
            USING ERRCODE = 'TN008', DETAIL = 'The completion and what this transaction wrote are not committed yet.',
                  HINT = 'Call tenure.complete once, as the last statement, and then commit.';
    ELSIF EXISTS (SELECT FROM tenure.job_history h
                   WHERE h.id = raise_lost.job AND h.claim_id = raise_lost.claim AND h.status = 'completed') THEN
        RAISE EXCEPTION 'job % is already completed by this very attempt', job
            USING ERRCODE = 'TN007',
                  DETAIL = 'An earlier transaction of this attempt completed it, and what that one wrote is committed.',
                  HINT = 'Roll this transaction back, and end the program with success: there is nothing left to do.';
    END IF;
    SELECT CASE WHEN j.status = 'queued' THEN format('The job is queued again, after token %s.', j.fencing_token)
                ELSE format('Worker %s runs it under token %s.', j.worker_id, j.fencing_token) END
      INTO state
      FROM tenure.jobs j WHERE j.id = raise_lost.job;
    IF FOUND THEN
        hint := 'Roll back and end the program. Another attempt does the job.';
    ELSE
        state := coalesce(
            (SELECT format('The job is %s, under token %s.', h.status, h.fencing_token)
               FROM tenure.job_history h WHERE h.id = raise_lost.job),
            (SELECT format('The job is a dead letter, after token %s.', d.fencing_token)
               FROM tenure.dead_letter_jobs d WHERE d.id = raise_lost.job));
        IF state IS NULL THEN
            state := 'There is no such job: it has ended and left nothing, or it never was.';
            hint := 'Roll back and end the program: the job has ended and left nothing, so this attempt or a later one '
                    'has completed it.';
        END IF;
    END IF;
    RAISE EXCEPTION 'this attempt, token %, no longer owns job %', token, job
        USING ERRCODE = 'TN001', DETAIL = state, HINT = hint;
END $$;

REVOKE ALL ON FUNCTION tenure.raise_lost(uuid, bigint, uuid) FROM PUBLIC;
