-- mark_queue: accept no new job of a queue, or accept them again. Once it returns, every enqueue that it does not
-- refuse is committed.
--
--   $1 queue  $2 the cell to which it has moved, or NULL  $3 the cell from which it arrives, or NULL
--
-- Gives up after 300 ms if a transaction that has inserted jobs has not ended: nobody waits behind it for longer.
SELECT tenure.mark_queue($1, $2, $3)
