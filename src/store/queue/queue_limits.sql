-- queue_limits: every queue that has a max_queued, and its value. Producers ask now and then.
SELECT queue, max_queued FROM tenure.queues WHERE max_queued IS NOT NULL
