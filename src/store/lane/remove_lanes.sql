-- remove_lanes: take a queue's lanes away; returns whether it had any. What is held is released.
--
--   $1 queue
SELECT tenure.remove_lanes($1) AS removed
