-- Notes that an attempt waits for an event, and returns what is known of it. answer: 'waits', with the seconds that are
-- left, or NULL for a wait without an end; 'came', with its payload; 'late', if the wait has ended, now or before;
-- 'taken', if a step or an effect of the job has the name; 'lost', if the attempt has lost its job.
--
-- src/groups/sql/await_event.sql calls it. It runs with the caller's rights: a worker may write effects.
-- An event that comes before its wait stands under a name that no step can have, until a wait finds it: or one who
-- knows the job's id alone could end the job, by an event with the name of a step that has not run.
-- It sees what is committed when it begins. `signal` locks the same row: an event that comes later finds the wait, and
-- wakes the job.
-- If the answer is lost, a second call finds what the first one has noted.
CREATE OR REPLACE FUNCTION tenure.await_event(job uuid, token bigint, claim uuid, name text, patience interval,
                                              OUT answer text, OUT payload text, OUT left_s float8)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known tenure.effects;
BEGIN
    PERFORM FROM tenure.jobs j
      WHERE j.id = job AND j.fencing_token = token AND j.claim_id = claim AND j.status = 'processing'
        FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        answer := 'lost';
        RETURN;
    END IF;
    UPDATE tenure.jobs j SET last_activity_at = clock_timestamp() WHERE j.id = job;
    -- It came when it came: an attempt that waits for another one, too, is not woken by it.
    INSERT INTO tenure.effects (job_id, key, fencing_token, result, step_kind, began_at, created_at)
    SELECT job, name, token, e.result, 'event', e.began_at, e.created_at
      FROM tenure.effects e WHERE e.job_id = job AND e.key = E'\x01' || name
        ON CONFLICT (job_id, key) DO NOTHING;
    INSERT INTO tenure.effects (job_id, key, fencing_token, result, step_kind, began_at, wakes_at)
    VALUES (job, name, token, 'null', 'awaited', clock_timestamp(), clock_timestamp() + patience)
        ON CONFLICT (job_id, key) DO NOTHING;
    SELECT * INTO known FROM tenure.effects e WHERE e.job_id = job AND e.key = name;
    IF known.step_kind = 'awaited' AND known.wakes_at <= clock_timestamp() THEN
        UPDATE tenure.effects e SET step_kind = 'late', fencing_token = token WHERE e.job_id = job AND e.key = name;
        known.step_kind := 'late';
    END IF;
    answer := CASE known.step_kind WHEN 'awaited' THEN 'waits' WHEN 'event' THEN 'came' WHEN 'late' THEN 'late'
                                   ELSE 'taken' END;
    payload := CASE answer WHEN 'came' THEN known.result::text END;
    left_s := CASE answer WHEN 'waits' THEN extract(epoch FROM known.wakes_at - clock_timestamp()) END;
END $$;

REVOKE ALL ON FUNCTION tenure.await_event(uuid, bigint, uuid, text, interval) FROM PUBLIC;
