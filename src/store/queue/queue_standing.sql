-- queue_standing: every queue that has a max_queued, its value, and the submissions that were read in the stream.
-- Producers ask once a second.
--
-- `standing` was right when NATS had made `standing_deliveries` deliveries: the producer takes off the later ones.
SELECT q.queue, q.max_queued,
       CASE WHEN s.standing_until > statement_timestamp() THEN s.standing END AS standing,
       s.standing_deliveries, s.standing_of
  FROM tenure.queues q
  LEFT JOIN tenure.queue_stats s ON s.queue = q.queue
 WHERE q.max_queued IS NOT NULL
