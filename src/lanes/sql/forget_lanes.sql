-- forget_lanes: remove the trigger of a queue without lanes. It may find the table in use: then the trigger stays, and
-- holds new jobs for a moment.
--
--   $1 queue
SELECT tenure.forget_lanes($1)
