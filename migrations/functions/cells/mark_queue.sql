-- mark_queue: changes where a queue's new jobs go, unless a later move has begun. Returns whether it has not.
--
-- Called by mark_queue.sql, for `tenure queues move`.
-- SECURITY DEFINER: the person on call does not own the table.
-- From its commit on, no new job of a marked queue is accepted but as tenure.refuse_moved says: CREATE TRIGGER waits
-- for every transaction that has inserted a job, and later ones meet the trigger. Others wait behind it, for `patience`
-- at most; that limit then holds for the rest of the caller's transaction. A queue that was never marked has no
-- trigger, and costs nothing. A job that is redriven has a clear_reason, and passes: it stays in its cell.
-- Two at once wait for the queue's row, and `move` decides. A lost answer: call again; it sets the same mark once more.
CREATE OR REPLACE FUNCTION tenure.mark_queue(of text, move bigint, to_cell text, from_cell text, since timestamptz,
                                             patience text) RETURNS bool
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('lock_timeout', patience, true);
    UPDATE tenure.queues q
       SET moved_to = to_cell, arrives_from = from_cell,
           arrives_since = CASE WHEN since IS NOT NULL THEN coalesce(q.arrives_since, since) END
     WHERE q.queue = of AND q.moves = move;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- A queue that comes back keeps the mark of the cell to which it has gone until it opens: then the table decides.
    EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE INSERT ON tenure.jobs FOR EACH ROW
                      WHEN (NEW.queue = %L AND NEW.clear_reason IS NULL)
                      EXECUTE FUNCTION tenure.refuse_moved(%L, %L)',
                   tenure.mark_of(of), of, CASE WHEN to_cell IS NOT NULL AND since IS NULL THEN 'moved' ELSE 'look' END,
                   coalesce(to_cell, from_cell, ''));
    RETURN true;
END $$;

REVOKE ALL ON FUNCTION tenure.mark_queue(text, bigint, text, text, timestamptz, text) FROM PUBLIC;
