-- marked_queues: the queues that have moved to another cell, or arrive from one. Workers of several cells ask now
-- and then.
SELECT queue, moved_to, arrives_from, arrives_since
  FROM tenure.queues
 WHERE moved_to IS NOT NULL OR arrives_from IS NOT NULL
