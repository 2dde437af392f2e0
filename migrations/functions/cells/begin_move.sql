-- begin_move: begins a move of a queue in this cell. Returns its number, which ends every move that began before, and
-- the queue's mark: where it has moved to, and from where and since when it arrives.
--
-- Called by begin_move.sql, for `tenure queues move`.
-- SECURITY DEFINER, as each step of a move: an operator needs EXECUTE alone.
-- Two at once wait for the queue's row, and get two numbers: each later step names its number, and a step of the
-- earlier move then finds another one and does nothing. After a lost answer, begin again.
CREATE OR REPLACE FUNCTION tenure.begin_move(of text) RETURNS TABLE (moves bigint, moved_to text, arrives_from text,
                                                           arrives_since timestamptz)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO tenure.queues AS q (queue, moves) VALUES (of, 1)
        ON CONFLICT (queue) DO UPDATE SET moves = q.moves + 1
    RETURNING q.moves, q.moved_to, q.arrives_from, q.arrives_since
$$;

REVOKE ALL ON FUNCTION tenure.begin_move(text) FROM PUBLIC;
