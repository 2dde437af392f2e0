-- Drops what moved a queue to another cell while it was in use: the file of the cells alone says where a queue's new
-- jobs go. The trigger of a queue that had moved goes, too, which refused the queue's new jobs in this cell.
-- The columns moved_to, arrives_from, arrives_since and moves of tenure.queues stay: programs of before read them.
DO $$
DECLARE
    mark text;
BEGIN
    FOR mark IN
        SELECT t.tgname FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
         WHERE t.tgrelid = 'tenure.jobs'::regclass
           AND p.pronamespace = 'tenure'::regnamespace AND p.proname = 'refuse_moved' LOOP
        EXECUTE format('DROP TRIGGER %I ON tenure.jobs', mark);
    END LOOP;
    DROP FUNCTION IF EXISTS tenure.begin_move(text),
        tenure.mark_queue(text, bigint, text, text, timestamptz, text), tenure.open_queue(text, bigint),
        tenure.forget_mark(text), tenure.refuse_moved(), tenure.mark_of(text);
END $$;
