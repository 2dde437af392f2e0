-- complete: completes the job in the caller's transaction: its rows and the completion are one commit, or neither is.
--
-- Called by programs that run a job (docs/sql.md), with their rights: postgres/roles.sql grants it to workers. The
-- library has complete.sql and complete_in.sql. Two at once wait for the job's row: the second finds none, and its
-- error says whether the attempt, this transaction or somebody else has ended the job (tenure.raise_lost). After a lost
-- answer of the commit, call again: TN007 says that it was written; of a kind without history, TN001 says that there is
-- no such job any more.
CREATE OR REPLACE FUNCTION tenure.complete(job uuid, token bigint, claim uuid, output jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    own_job tenure.jobs;
    is_kept boolean;
BEGIN
    PERFORM tenure.check_growth('the output', output);
    -- It waits for the row's lock: its verdict ends the transaction.
    DELETE FROM tenure.jobs j
     WHERE j.id = complete.job AND j.fencing_token = complete.token AND j.claim_id = complete.claim
       AND j.status = 'processing'
    RETURNING j.* INTO own_job;
    IF NOT FOUND THEN
        PERFORM tenure.raise_lost(job, token, claim);
    END IF;
    PERFORM tenure.limit_idle(greatest(interval '1 second', least(interval '10 seconds', own_job.stale_after / 4)));
    -- A kind without history leaves no row that tells this transaction's second call.
    PERFORM set_config('tenure.completed',
                       concat_ws(' ', nullif(current_setting('tenure.completed', true), ''), own_job.claim_id), true);
    -- The worker that runs the job says of which kinds it keeps no history.
    is_kept := NOT coalesce((SELECT w.unkept && ARRAY[own_job.kind, '*'] FROM tenure.workers w
                              WHERE w.worker_id = own_job.worker_id), false);
    IF is_kept THEN
        INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
               claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at,
               stage, progress, message, output, trace_context, last_error)
        VALUES (own_job.id, own_job.queue, own_job.kind, own_job.payload, 'completed', own_job.attempt,
                own_job.max_attempts, own_job.fencing_token, own_job.claim_id, own_job.worker_id, own_job.created_at,
                own_job.scheduled_at, own_job.started_at, own_job.last_activity_at, clock_timestamp(), own_job.stage,
                own_job.progress, own_job.message, complete.output, own_job.trace_context, own_job.last_error);
    ELSE
        -- As complete_unkept.sql.
        UPDATE tenure.job_keys k SET ended_at = clock_timestamp() WHERE k.job_id = own_job.id;
        PERFORM tenure.forget_traces(own_job.id);
    END IF;
END $$;

REVOKE ALL ON FUNCTION tenure.complete(uuid, bigint, uuid, jsonb) FROM PUBLIC;

COMMENT ON FUNCTION tenure.complete(uuid, bigint, uuid, jsonb) IS
'Completes the job in this transaction: what the transaction wrote and the completion are one commit, or neither
happens. Call it last and outside a savepoint, and let its error end the transaction: see tenure.fence. The transaction
may sit idle for at most 10 s afterwards. At REPEATABLE READ and SERIALIZABLE, begin with tenure.hold. The worker learns
of it: the program''s exit code then has no effect.
output: what the finished job shows. Other arguments and errors: as tenure.fence.';
