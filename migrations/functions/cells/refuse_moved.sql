-- refuse_moved: the trigger of a marked queue: refuses its new jobs, once it has moved or until it has arrived.
--
-- tenure.mark_queue creates the triggers, on tenure.jobs. SECURITY DEFINER: a producer reads no settings.
-- TG_ARGV: 'moved' and the cell; the argument says it, not the table, and so a transaction with an old snapshot meets
-- it, too. Or 'look' and a cell: the table says what holds now, so that a queue opens by an UPDATE of its row alone; a
-- transaction with a snapshot of its own may not see that, and is refused.
-- A submission stands in this cell's stream, and nowhere else: a queue that has moved accepts it. One that arrives does
-- not, and its message comes again: the job that holds its key may not be known yet.
-- TN001 and TN002 are for programs that insert jobs themselves, the library among them; TN005 and TN006 for the
-- functions of docs/sql.md, which say `tenure.by_sql`.
CREATE OR REPLACE FUNCTION tenure.refuse_moved() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_submission bool := coalesce(current_setting('tenure.submitted', true) = 'on', false);
    by_sql        bool := coalesce(current_setting('tenure.by_sql', true) = 'on', false);
    went_to       text := CASE WHEN TG_ARGV[0] = 'moved' THEN TG_ARGV[1] END;
    comes_from    text;
BEGIN
    IF went_to IS NULL THEN
        SELECT q.moved_to,
               coalesce(q.arrives_from,
                        CASE WHEN current_setting('transaction_isolation') <> 'read committed' THEN TG_ARGV[1] END)
          INTO went_to, comes_from
          FROM tenure.queues q
         WHERE q.queue = NEW.queue;
        IF NOT FOUND THEN
            comes_from := TG_ARGV[1];
        END IF;
    END IF;
    IF went_to IS NOT NULL AND NOT is_submission THEN
        RAISE EXCEPTION 'queue % has moved to cell %', NEW.queue, went_to
            USING ERRCODE = CASE WHEN by_sql THEN 'TN005' ELSE 'TN001' END, DETAIL = NEW.queue || ' ' || went_to,
                  HINT = 'Enqueue there: that cell accepts its new jobs.';
    ELSIF went_to IS NULL AND comes_from IS NOT NULL THEN
        RAISE EXCEPTION 'queue % is about to arrive from cell %', NEW.queue, comes_from
            USING ERRCODE = CASE WHEN by_sql THEN 'TN006' ELSE 'TN002' END, DETAIL = NEW.queue || ' ' || comes_from,
                  HINT = 'Try again in a moment; if that lasts, run `tenure queues move` again.';
    END IF;
    RETURN NEW;
END $$;

REVOKE ALL ON FUNCTION tenure.refuse_moved() FROM PUBLIC;
