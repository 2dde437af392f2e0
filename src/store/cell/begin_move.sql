-- begin_move: begin a move of a queue in this cell: its fencing number, and the queue's mark. No step of a move that
-- began before has an effect from now on.
--
--   $1 queue
SELECT moves, moved_to, arrives_from, arrives_since FROM tenure.begin_move($1)
