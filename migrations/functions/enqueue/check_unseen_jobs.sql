-- Raises 40001 if one of these jobs is live or a dead letter, and this transaction's snapshot is too old to show it.
--
-- Part of `take_key` and `check_new_jobs`, with their rights: by an old snapshot, a producer could make another's job
-- its own. Only an insert finds a row that no snapshot shows: those of the block go with it.
CREATE OR REPLACE FUNCTION tenure.check_unseen_jobs(ids uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    unseen CONSTANT uuid[] := ARRAY(
        SELECT u.id FROM unnest(ids) AS u(id)
         WHERE current_setting('transaction_isolation') <> 'read committed'
           AND NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = u.id)
           AND NOT EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = u.id));
BEGIN
    IF unseen = '{}' THEN
        RETURN;
    END IF;
    BEGIN
        INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, publish_at)
        SELECT DISTINCT u.id, '', '', 'null'::jsonb, 1, now(), now() FROM unnest(unseen) AS u(id);
        INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token, created_at,
                                             scheduled_at, died_at, last_error, category, execution_history)
        SELECT DISTINCT u.id, '', '', 'null'::jsonb, 0, 1, 0, now(), now(), now(), '', 'exhausted', '[]'::jsonb
          FROM unnest(unseen) AS u(id);
        RAISE EXCEPTION USING ERRCODE = 'triggered_action_exception';
    EXCEPTION
        WHEN triggered_action_exception THEN NULL;
        WHEN unique_violation THEN
            RAISE EXCEPTION 'this transaction''s snapshot is older than a job that it names'
                USING ERRCODE = 'serialization_failure', HINT = 'Roll back, and begin again.';
    END;
END $$;

REVOKE ALL ON FUNCTION tenure.check_unseen_jobs(uuid[]) FROM PUBLIC;
