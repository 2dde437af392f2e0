-- Cells: a queue whose new jobs another tenure accepts, or which is about to arrive from one.

-- moved_to: the cell that accepts the queue's new jobs; this one runs those that it has. arrives_from: the cell whose
-- keys, limits and schedules are still being copied: until then, no new job is accepted. Both: it has moved, and is about
-- to come back. NULL, both: the queue is here.
-- arrives_since: when that copy began, by the old cell's clock. moves: the fencing number of the latest move;
-- each step of a move names it.
ALTER TABLE tenure.queues
    ADD COLUMN moved_to      text,
    ADD COLUMN arrives_from  text,
    ADD COLUMN arrives_since timestamptz,
    ADD COLUMN moves         bigint NOT NULL DEFAULT 0;

-- Refuses new jobs of a queue that has moved, or has not arrived yet.
-- `moved` is an argument of the trigger, not read from the table: a transaction with an old snapshot must meet it, too.
-- `look`: the table says what holds now, so that a queue opens by an UPDATE of its row alone. A transaction
-- with a snapshot of its own may not see that, and is refused.
-- A submission stands in this cell's stream, and nowhere else: a queue that has moved accepts it. One that arrives does
-- not, and its message comes again: the job that holds its key may not be known yet.
-- SECURITY DEFINER: a producer reads no settings.
CREATE FUNCTION tenure.refuse_moved() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_submission bool := coalesce(current_setting('tenure.submitted', true) = 'on', false);
    went_to       text := CASE WHEN TG_ARGV[0] = 'moved' THEN TG_ARGV[1] END;
    comes_from    text;
BEGIN
    IF went_to IS NULL THEN
        SELECT q.moved_to, coalesce(q.arrives_from, CASE WHEN current_setting('transaction_isolation') <> 'read committed'
                                                         THEN TG_ARGV[1] END)
          INTO went_to, comes_from
          FROM tenure.queues q
         WHERE q.queue = NEW.queue;
        IF NOT FOUND THEN
            comes_from := TG_ARGV[1];
        END IF;
    END IF;
    IF went_to IS NOT NULL AND NOT is_submission THEN
        RAISE EXCEPTION 'queue % has moved to cell %', NEW.queue, went_to
            USING ERRCODE = 'TN001', DETAIL = NEW.queue || ' ' || went_to,
                  HINT = 'Enqueue there: that cell accepts its new jobs.';
    ELSIF went_to IS NULL AND comes_from IS NOT NULL THEN
        RAISE EXCEPTION 'queue % is about to arrive from cell %', NEW.queue, comes_from
            USING ERRCODE = 'TN002', DETAIL = NEW.queue || ' ' || comes_from,
                  HINT = 'Try again in a moment; if that lasts, run `tenure queues move` again.';
    END IF;
    RETURN NEW;
END $$;
REVOKE ALL ON FUNCTION tenure.refuse_moved() FROM PUBLIC;

-- The name of the trigger of a queue with a mark.
CREATE FUNCTION tenure.mark_of(queue text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'mark_' || left(encode(sha256(convert_to(queue, 'UTF8')), 'hex'), 16)
$$;

-- Begins a move of a queue in this cell: returns its number, which ends every move that began before, and its mark.
CREATE FUNCTION tenure.begin_move(of text) RETURNS TABLE (moves bigint, moved_to text, arrives_from text,
                                                           arrives_since timestamptz)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO tenure.queues AS q (queue, moves) VALUES (of, 1)
        ON CONFLICT (queue) DO UPDATE SET moves = q.moves + 1
    RETURNING q.moves, q.moved_to, q.arrives_from, q.arrives_since
$$;
REVOKE ALL ON FUNCTION tenure.begin_move(text) FROM PUBLIC;

-- Changes a queue's mark, unless a later move has begun. Returns whether it has not. From its commit on, no new job of a
-- marked queue is accepted: CREATE TRIGGER waits for every transaction that has inserted a job, and later ones meet the
-- trigger. A queue that was never marked has none, and costs nothing. A job that is redriven has a
-- clear_reason, and passes: it stays in its cell.
-- SECURITY DEFINER: the person on call does not own the table. Others wait behind it for `patience` at most.
CREATE FUNCTION tenure.mark_queue(of text, move bigint, to_cell text, from_cell text, since timestamptz, patience text)
RETURNS bool
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

-- Accepts new jobs of a queue that has arrived, unless a later move has begun.
CREATE FUNCTION tenure.open_queue(of text, move bigint) RETURNS bool
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH opened AS (
        UPDATE tenure.queues q
           SET moved_to = NULL, arrives_from = NULL, arrives_since = NULL
         WHERE q.queue = of AND q.moves = move
        RETURNING 1
    )
    SELECT EXISTS (SELECT FROM opened)
$$;
REVOKE ALL ON FUNCTION tenure.open_queue(text, bigint) FROM PUBLIC;

-- Removes the trigger of a queue without a mark, which lets every job pass. It waits for readers of the table, too: a
-- step of its own, that may fail.
CREATE FUNCTION tenure.forget_mark(of text) RETURNS void
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
