-- Tells a job of an event: `ctx.event` of that name returns the payload, whether the job waits already or not. Returns
-- 'signalled'; 'known', if an event of that name came before, which counts; 'late', if the wait has ended; 'taken', if
-- a step or an effect of the job has the name; 'finished', or 'not_found'. A wrong name or payload raises TN003 with a
-- hint.
--
-- Programs call it (docs/sql.md), and src/groups/sql/signal.sql and signal_by.sql.
-- SECURITY DEFINER: who approves a job need not be able to change it.
-- Of two at once the second waits for the row of the job, and finds the first one's event. `await_event` and the settle
-- of a suspended attempt lock that row, too: either they see the event, or it finds the job waiting and wakes it.
-- If the answer is lost, a second call says 'known', and the first one's payload counts.
CREATE OR REPLACE FUNCTION tenure.signal(job uuid, name text, payload jsonb DEFAULT 'null') RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    live  tenure.jobs;
    known tenure.effects;
    fault CONSTANT text[] := tenure.fault_in_job('queue', 'kind', coalesce(payload, 'null'), NULL, NULL, NULL, NULL);
BEGIN
    IF name IS NULL OR octet_length(name) NOT BETWEEN 1 AND 512 OR NOT tenure.is_key(name) THEN
        RAISE EXCEPTION 'name is % (% bytes), but must have 1 to 512 bytes and no control characters',
                        to_json(left(name, 80)), octet_length(name)
            USING ERRCODE = 'TN003', HINT = 'It is the name that the job gives to ctx.event.';
    ELSIF fault IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'TN003', MESSAGE = fault[1], DETAIL = 'Nothing was signalled.', HINT = fault[2];
    END IF;
    -- Again, if it is redriven in between.
    FOR try IN 1..5 LOOP
        SELECT * INTO live FROM tenure.jobs j WHERE j.id = job FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        IF EXISTS (SELECT FROM tenure.job_history h WHERE h.id = job)
           OR EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = job) THEN
            RETURN 'finished';
        END IF;
    END LOOP;
    IF live.id IS NULL THEN
        RETURN 'not_found';
    ELSIF live.status = 'processing' THEN
        -- The row stays locked until the commit, and its worker must write to it.
        PERFORM tenure.limit_idle(greatest(interval '1 second', live.stale_after / 4));
    END IF;
    SELECT * INTO known FROM tenure.effects e WHERE e.job_id = job AND e.key = name;
    IF NOT FOUND THEN
        -- `await_event` says why not under its own name.
        INSERT INTO tenure.effects (job_id, key, fencing_token, result, step_kind, began_at)
        VALUES (job, E'\x01' || name, live.fencing_token, coalesce(payload, 'null'), 'event', clock_timestamp())
            ON CONFLICT (job_id, key) DO NOTHING;
        IF NOT FOUND THEN
            RETURN 'known';
        END IF;
        -- Its attempt may have been about to wait for this one, too.
        IF live.fencing_token > 0
           AND (EXISTS (SELECT FROM tenure.effects e WHERE e.job_id = job AND e.step_kind = 'awaited')
                OR EXISTS (SELECT FROM tenure.job_edges d
                            WHERE d.after = job AND d.state IS NULL AND d.step IS NOT NULL)) THEN
            PERFORM tenure.wake_jobs(ARRAY[job]);
        END IF;
        RETURN 'signalled';
    ELSIF known.step_kind IS DISTINCT FROM 'awaited' THEN
        RETURN CASE known.step_kind WHEN 'event' THEN 'known' WHEN 'late' THEN 'late' ELSE 'taken' END;
    ELSIF known.wakes_at <= clock_timestamp() THEN
        RETURN 'late';
    END IF;
    UPDATE tenure.effects e
       SET result = coalesce(payload, 'null'), step_kind = 'event', created_at = clock_timestamp()
     WHERE e.job_id = job AND e.key = name;
    PERFORM tenure.wake_jobs(ARRAY[job]);
    RETURN 'signalled';
END $$;

REVOKE ALL ON FUNCTION tenure.signal(uuid, text, jsonb) FROM PUBLIC;

COMMENT ON FUNCTION tenure.signal(uuid, text, jsonb) IS
'Tells a job of an event, in this transaction: the call ctx.event of that name returns the payload, now or later.
Returns signalled; known: an event of that name came before, and counts; late: the job has stopped waiting for it;
taken: a step or an effect of the job has that name; finished: the job has ended; not_found: there is no such job.
Errors: TN003 the name or the payload is not valid.';
