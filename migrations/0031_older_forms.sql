-- Drops the forms of tenure.enqueue with fewer arguments, and the part that served them: no program calls them now. A
-- view or a default that does keeps them.
DO $$
DECLARE
    form text;
BEGIN
    FOREACH form IN ARRAY ARRAY[
        'enqueue_8(text, text, jsonb, text, timestamptz, interval, int, text)',
        'enqueue_16(text, text, jsonb, text, timestamptz, interval, int, text, text, int, timestamptz, text, text, '
            'interval, text, text)',
        'insert_jobs(text[], text[], jsonb[], text[], timestamptz[], int[], text[])'] LOOP
        BEGIN
            EXECUTE 'DROP FUNCTION IF EXISTS tenure.' || form;
        EXCEPTION WHEN dependent_objects_still_exist THEN NULL;
        END;
    END LOOP;
END $$;
-- Takes back a right of all roles, to add to the audit: postgres/roles.sql gives it to those that act.
REVOKE INSERT (via, actor, act, queue, subject, jobs, details) ON tenure.audit FROM PUBLIC;
