-- queue_limits_alone: queue_limits.sql for a producer that may not read the counts of the last scan.
SELECT queue, max_queued, NULL::bigint AS submitted FROM tenure.queues WHERE max_queued IS NOT NULL
