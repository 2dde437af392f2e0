-- end_move: forget in a cell that the queue was about to come back there, once another cell has it.
--
--   $1 queue  $2 the number of the move
UPDATE tenure.queues SET arrives_from = NULL, arrives_since = NULL
 WHERE queue = $1 AND moves = $2 AND moved_to IS NOT NULL
