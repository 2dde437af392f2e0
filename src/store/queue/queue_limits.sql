-- queue_limits: every queue that has a max_queued, its value, and its submissions of the last scan. Producers ask now and
-- then.
SELECT q.queue, q.max_queued,
       CASE WHEN s.submitted_until > statement_timestamp() THEN s.submitted END AS submitted
  FROM tenure.queues q
  LEFT JOIN tenure.queue_stats s USING (queue)
 WHERE q.max_queued IS NOT NULL
