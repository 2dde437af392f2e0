-- limit_idle: limits how long the current transaction may sit idle, unless it has a shorter limit.
--
-- A program that freezes must not keep its job's row for ever: Postgres ends its session. Called by the functions that
-- lock the row of a running job until the commit: complete, fence, hold, once, once_store, progress, cancel and signal.
-- It reads no table, and so PUBLIC may execute it. The limit ends with the transaction, and stays beyond the calling
-- function, whose SET clauses do not name it.
CREATE OR REPLACE FUNCTION tenure.limit_idle(most interval) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    limit_now interval := current_setting('idle_in_transaction_session_timeout')::interval;
BEGIN
    IF limit_now = interval '0' OR limit_now > most THEN
        PERFORM set_config('idle_in_transaction_session_timeout', ceil(extract(epoch FROM most) * 1000)::text, true);
    END IF;
END $$;

GRANT EXECUTE ON FUNCTION tenure.limit_idle(interval) TO PUBLIC;
