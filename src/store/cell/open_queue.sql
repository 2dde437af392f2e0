-- open_queue: accept new jobs of a queue that has arrived, unless a later move has begun. Changes one row, and
-- waits for no other transaction that enqueues.
--
--   $1 queue  $2 the number of the move
SELECT tenure.open_queue($1, $2) AS holds
