-- forget_mark: remove the trigger of a queue that has no mark.
--
--   $1 queue
SELECT tenure.forget_mark($1)
