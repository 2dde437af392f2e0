-- open_queue: accepts new jobs of a queue that has arrived, unless a later move has begun. Returns whether it has not.
--
-- Called by open_queue.sql, for `tenure queues move`.
-- SECURITY DEFINER, as each step of a move: an operator needs EXECUTE alone.
-- It changes one row, and waits for no transaction that enqueues: the trigger then finds no mark, and lets jobs pass.
-- Two at once wait for the queue's row. A lost answer: call again.
CREATE OR REPLACE FUNCTION tenure.open_queue(of text, move bigint) RETURNS bool
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
