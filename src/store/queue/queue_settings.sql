-- queue_settings: the settings that operators gave these queues. Workers ask when they change, and now and then.
--
--   $1 queues
--
-- One row a queue that has settings. Counts running jobs and live workers only for a queue with a limit.
SELECT q.queue, q.paused_at IS NOT NULL AS paused, q.max_running, q.events,
       CASE WHEN q.max_running IS NOT NULL THEN
            (SELECT count(*) FILTER (WHERE (SELECT j.status = 'processing' AND j.fencing_token = s.fencing_token
                                              FROM tenure.jobs j WHERE j.id = s.job_id))
               FROM tenure.queue_slots s WHERE s.queue = q.queue)
       END AS running,
       CASE WHEN q.max_running IS NOT NULL THEN
            (SELECT count(*) FROM tenure.workers w
              WHERE w.queues @> ARRAY[q.queue] AND w.draining_at IS NULL
                AND w.last_seen_at > statement_timestamp() - 3 * w.renew_every)
       END AS workers
  FROM tenure.queues q
 WHERE q.queue = ANY ($1::text[])
