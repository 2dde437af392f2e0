-- mark_queue: change where a queue's new jobs go, unless a later move has begun. Once it returns, every enqueue that it
-- does not refuse is committed.
--
--   $1 queue  $2 the number of the move  $3 the cell to which it has moved, or NULL  $4 the one from which it arrives
--   or comes back, or NULL  $5 when the copy of its keys began, if it does: the table then decides (see
--   `refuse_moved`)
--   $6 how long to wait for transactions that have inserted jobs, for example '300ms'
--
-- One row: whether the move still holds. Others wait behind this statement for as long as it waits.
SELECT tenure.mark_queue($1, $2, $3, $4, $5, $6) AS holds
