-- forget_mark: drops the trigger of a queue that has no mark any more. While it is there, it lets every job pass.
--
-- Called by forget_mark.sql, for `tenure queues move`, as its last step.
-- SECURITY DEFINER: the operator does not own the table. DROP TRIGGER waits for readers of tenure.jobs, too, and others
-- wait behind it: it gives up after 300 ms, and the trigger stays.
-- Right beside mark_queue: that changes the queue's row before it creates the trigger, and waits for this one's lock on
-- it.
CREATE OR REPLACE FUNCTION tenure.forget_mark(of text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '300ms' AS $$
BEGIN
    -- A mark that is set meanwhile waits for this row.
    PERFORM FROM tenure.queues q
      WHERE q.queue = of AND q.moved_to IS NULL AND q.arrives_from IS NULL FOR UPDATE;
    IF FOUND THEN
        EXECUTE format('DROP TRIGGER IF EXISTS %I ON tenure.jobs', tenure.mark_of(of));
    END IF;
END $$;

REVOKE ALL ON FUNCTION tenure.forget_mark(text) FROM PUBLIC;
