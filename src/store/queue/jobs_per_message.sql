-- jobs_per_message: for each queue, its live workers, and how many jobs one message may name.
--
--   $1 queues
SELECT queue, workers, jobs FROM tenure.jobs_per_message($1)
