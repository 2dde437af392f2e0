-- queue_limits: the queues that take no more than so many jobs. For producers, who ask now and then.
SELECT queue, max_queued FROM tenure.queues WHERE max_queued IS NOT NULL
