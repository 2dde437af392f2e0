-- report: add a worker's counts since its last report to this minute.
--
--   $1 an array of objects, one a queue, in order of the queues: {queue, claimed, completed, …, waited, ran}
--
-- Not safe to repeat: after a lost answer, some seconds may count twice, or not at all.
INSERT INTO tenure.activity AS a
       (minute, queue, claimed, completed, retried, snoozed, failed, cancelled, released, waited, ran)
SELECT date_trunc('minute', statement_timestamp()), queue, claimed, completed, retried, snoozed, failed, cancelled,
       released, waited, ran
  FROM jsonb_to_recordset($1) AS r (queue text, claimed bigint, completed bigint, retried bigint, snoozed bigint,
       failed bigint, cancelled bigint, released bigint, waited bigint[], ran bigint[])
 ORDER BY queue
    ON CONFLICT (minute, queue) DO UPDATE
   SET claimed = a.claimed + excluded.claimed,
       completed = a.completed + excluded.completed,
       retried = a.retried + excluded.retried,
       snoozed = a.snoozed + excluded.snoozed,
       failed = a.failed + excluded.failed,
       cancelled = a.cancelled + excluded.cancelled,
       released = a.released + excluded.released,
       waited = (SELECT array_agg(coalesce(x, 0) + coalesce(y, 0) ORDER BY i)
                   FROM unnest(a.waited, excluded.waited) WITH ORDINALITY AS u (x, y, i)),
       ran = (SELECT array_agg(coalesce(x, 0) + coalesce(y, 0) ORDER BY i)
                FROM unnest(a.ran, excluded.ran) WITH ORDINALITY AS u (x, y, i))
