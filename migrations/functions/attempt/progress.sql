-- progress: writes a sign of life of the attempt, with its report. Returns true once a cancellation was asked for.
--
-- Called by programs that run a job (docs/sql.md), with their rights: postgres/roles.sql grants it to workers. The
-- library has progress.sql. It waits for the job's row, and keeps it locked until the caller's commit: call it in a
-- transaction of its own. What is left out stays as it was, so two at once lose nothing of each other. No indexed
-- column changes: the update is HOT.
CREATE OR REPLACE FUNCTION tenure.progress(job uuid, token bigint, claim uuid, stage text DEFAULT NULL,
                                           progress double precision DEFAULT NULL, message text DEFAULT NULL,
                                           checkpoint jsonb DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    percent   real := CASE WHEN progress.progress <> 'NaN' THEN greatest(0, least(100, progress.progress)) END;
    bytes_max text := coalesce(nullif(current_setting('tenure.checkpoint_bytes_max', true), ''), '1048576');
    must_stop boolean;
    lease     interval;
BEGIN
    IF bytes_max !~ '^[0-9]{1,10}$' THEN
        RAISE EXCEPTION 'the setting tenure.checkpoint_bytes_max is %, but must be a number of bytes',
                        to_json(bytes_max)
            USING ERRCODE = 'TN003', HINT = 'Write it without a unit, as in 1048576.';
    ELSIF octet_length(progress.checkpoint::text) > bytes_max::bigint THEN
        RAISE EXCEPTION 'the checkpoint has % bytes, but at most % are allowed',
                        octet_length(progress.checkpoint::text), bytes_max
            USING ERRCODE = 'TN003', DETAIL = 'The size counts as Postgres writes the checkpoint as text.',
                  HINT = 'Store the state elsewhere and keep a reference, or raise the limit: '
                         'ALTER DATABASE … SET tenure.checkpoint_bytes_max = … (a number of bytes).';
    END IF;
    UPDATE tenure.jobs j
       SET last_activity_at = clock_timestamp(),
           stage            = coalesce(progress.stage, j.stage),
           progress         = coalesce(percent, j.progress),
           message          = coalesce(progress.message, j.message),
           checkpoint       = coalesce(progress.checkpoint, j.checkpoint)
     WHERE j.id = progress.job AND j.fencing_token = progress.token AND j.claim_id = progress.claim
       AND j.status = 'processing'
    RETURNING j.cancel_requested_at IS NOT NULL, j.stale_after INTO must_stop, lease;
    IF NOT FOUND THEN
        PERFORM tenure.raise_lost(progress.job, progress.token, progress.claim);
    END IF;
    PERFORM tenure.limit_idle(greatest(interval '1 second', lease / 4));
    RETURN must_stop;
END $$;

REVOKE ALL ON FUNCTION tenure.progress(uuid, bigint, uuid, text, float8, text, jsonb) FROM PUBLIC;

COMMENT ON FUNCTION tenure.progress(uuid, bigint, uuid, text, float8, text, jsonb) IS
'A sign of life of the attempt, with a report. Returns true once a cancellation of the job was asked for: stop, then.
Call it in a transaction of its own: others see it when that commits, and the job''s row is locked until then.
progress: percent, 0 to 100. checkpoint: what the next attempt gets if this one does not complete, at most
tenure.checkpoint_bytes_max bytes. What is left out stays as it was.
Other arguments and errors: as tenure.fence.';
