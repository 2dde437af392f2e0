-- Goes on with the redrives that are open, at most `most` jobs of each, and returns those that have changed.
--
-- The worker with the turn of redrives calls it (src/redrives/sql/tend_redrives.sql).
-- SECURITY DEFINER: a worker may not delete dead letters; it goes on with what an operator has begun.
-- Two calls at once: each passes over the redrives that the other has. What one redrive has to wait for, or Postgres
-- refuses, holds up no other: it goes on with the next call, and a refusal is the `why` of a row without a change. If
-- the answer is lost, the redrive's row says all of it but the log line.
CREATE OR REPLACE FUNCTION tenure.tend_redrives(most int)
RETURNS TABLE (redrive_id uuid, has_changed boolean, now_state text, queued bigint, redriven bigint, failed bigint,
               jobs bigint, why text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
    SET jit = off AS $$
#variable_conflict use_column
DECLARE
    before tenure.redrives;
BEGIN
    FOR before IN
        SELECT * FROM tenure.redrives r WHERE r.ended_at IS NULL ORDER BY r.started_at FOR UPDATE SKIP LOCKED
    LOOP
        BEGIN
            PERFORM tenure.tend_redrive(before.id, most);
            RETURN QUERY
            SELECT r.id, r.state <> before.state, r.state, r.redriven - before.redriven, r.redriven, r.failed, r.jobs,
                   r.reason
              FROM tenure.redrives r
             WHERE r.id = before.id AND (r.state <> before.state OR r.redriven > before.redriven);
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN NULL;
            WHEN OTHERS THEN
                RETURN QUERY SELECT before.id, false, before.state, 0::bigint, before.redriven, before.failed,
                                    before.jobs, SQLERRM;
        END;
    END LOOP;
END $$;

REVOKE ALL ON FUNCTION tenure.tend_redrives(int) FROM PUBLIC;
