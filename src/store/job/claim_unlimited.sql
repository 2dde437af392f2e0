-- claim_unlimited: of a queue that is neither paused nor limited. So a pause holds from the moment it is committed,
-- also for workers that have not heard of it; what has a limit is claimed by claim_limited.sql.
   AND NOT EXISTS (SELECT FROM tenure.queues q
                    WHERE q.queue = $2 AND (q.paused_at IS NOT NULL OR q.max_running IS NOT NULL))
