-- activity: the counts of all workers, by minute and queue, the oldest first.
--
--   $1 how many minutes back
--
-- Minutes without activity are missing.
SELECT extract(epoch FROM date_trunc('minute', statement_timestamp()) - minute)::bigint / 60 AS minutes_ago,
       claimed, completed, retried, snoozed, failed, cancelled, released, waited, ran
  FROM tenure.activity
 WHERE minute > date_trunc('minute', statement_timestamp()) - $1 * interval '1 minute'
 ORDER BY minute, queue
