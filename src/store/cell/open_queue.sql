-- open_queue: accept new jobs of a queue that has arrived, if its mark is still this one. Waits for nobody.
--
--   $1 queue  $2, $3 its mark, as for mark_queue.sql
SELECT tenure.open_queue($1, $2, $3) AS was_so
