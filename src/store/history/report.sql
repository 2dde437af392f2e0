-- report: add a worker's counts since its last report to this minute.
--
--   $1 an array of objects, one a queue, in order of the queues: {queue, claimed, completed, …, waited, ran}
--
-- Not safe to repeat: after a lost answer, some seconds may count twice, or not at all.
-- Made of parts: `scripts/statement report` prints it whole.
INSERT INTO tenure.activity AS a
       (minute, queue, claimed, completed, unkept, retried, snoozed, failed, cancelled, released, waited, ran)
SELECT date_trunc('minute', statement_timestamp()), queue, claimed, completed, unkept, retried, snoozed, failed,
       cancelled, released, waited, ran
  FROM jsonb_to_recordset($1) AS r (queue text, claimed bigint, completed bigint, unkept bigint, retried bigint,
       snoozed bigint, failed bigint, cancelled bigint, released bigint, waited bigint[], ran bigint[])
 ORDER BY queue
-- include history/parts/activity_add.sql
