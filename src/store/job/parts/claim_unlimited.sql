-- claim_unlimited: requires a queue that is neither paused nor limited. So a pause holds from its commit on, also for
-- workers that have not heard of it; claim_limited.sql claims jobs of a limited queue.
   AND NOT EXISTS (SELECT FROM tenure.queues q
                    WHERE q.queue = $2 AND (q.paused_at IS NOT NULL OR q.max_running IS NOT NULL))
