-- mark_queue: change where a queue's new jobs go, if its mark is still this one. Once it returns, every enqueue that it
-- does not refuse is committed.
--
--   $1 queue  $2, $3 its mark: the cell to which it has moved, and the one from which it arrives  $4, $5 its new mark
--   $6 when the copy of its keys began, if it arrives or comes back: the table then decides (see `refuse_moved`)
--   $7 how long to wait for transactions that have inserted jobs, for example '300ms'
--
-- One row: whether the mark was that one. Others wait behind this statement for as long as it waits.
SELECT tenure.mark_queue($1, $2, $3, $4, $5, $6, $7) AS was_so
