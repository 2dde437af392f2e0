-- Cells: a queue whose new jobs another tenure accepts, or which is about to arrive from one.

-- moved_to: the cell that accepts the queue's new jobs; this one runs those that it has. arrives_from: the cell whose
-- keys, limits and schedules are still being copied: until then, no new job is accepted. NULL, both: the queue is here.
ALTER TABLE tenure.queues
    ADD COLUMN moved_to     text,
    ADD COLUMN arrives_from text;

-- Refuses new jobs of a queue that has moved, or has not arrived yet. Submissions are accepted: their messages stand in
-- this cell's stream, and nowhere else.
-- The mark is an argument of the trigger, not read from the table: a transaction with an old snapshot must meet it, too.
CREATE FUNCTION tenure.refuse_moved() RETURNS trigger
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_ARGV[0] = 'open' OR current_setting('tenure.submitted', true) = 'on' THEN
        RETURN NEW;
    ELSIF TG_ARGV[0] = 'moved' THEN
        RAISE EXCEPTION 'queue % has moved to cell %', NEW.queue, TG_ARGV[1]
            USING ERRCODE = 'TN001', DETAIL = NEW.queue || ' ' || TG_ARGV[1],
                  HINT = 'Enqueue there: that cell accepts its new jobs.';
    END IF;
    RAISE EXCEPTION 'queue % is about to arrive from cell %', NEW.queue, TG_ARGV[1]
        USING ERRCODE = 'TN002', DETAIL = NEW.queue || ' ' || TG_ARGV[1],
              HINT = 'Try again in a moment; if that lasts, run `tenure queues move` again.';
END $$;
REVOKE ALL ON FUNCTION tenure.refuse_moved() FROM PUBLIC;

-- Marks a queue as moved or arriving, or removes its mark. From its commit on, no new job of a marked queue is accepted:
-- CREATE TRIGGER waits for every transaction that has inserted a job, and later ones meet the trigger. A queue that was
-- never marked has none, and costs nothing. A job that has had an attempt passes: a redriven one stays in its cell.
-- SECURITY DEFINER: the person on call does not own the table. Others do not wait behind it for longer than that.
CREATE FUNCTION tenure.mark_queue(of text, to_cell text, from_cell text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '300ms' AS $$
BEGIN
    INSERT INTO tenure.queues AS q (queue, moved_to, arrives_from) VALUES (of, to_cell, from_cell)
        ON CONFLICT (queue) DO UPDATE SET moved_to = excluded.moved_to, arrives_from = excluded.arrives_from;
    EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE INSERT ON tenure.jobs FOR EACH ROW
                      WHEN (NEW.queue = %L AND NEW.fencing_token = 0) EXECUTE FUNCTION tenure.refuse_moved(%L, %L)',
                   tenure.mark_of(of), of,
                   CASE WHEN to_cell IS NOT NULL THEN 'moved' WHEN from_cell IS NOT NULL THEN 'arriving' ELSE 'open' END,
                   coalesce(to_cell, from_cell, ''));
END $$;
REVOKE ALL ON FUNCTION tenure.mark_queue(text, text, text) FROM PUBLIC;

-- The name of the trigger of a queue with a mark.
CREATE FUNCTION tenure.mark_of(queue text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'mark_' || left(encode(sha256(convert_to(queue, 'UTF8')), 'hex'), 16)
$$;

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
