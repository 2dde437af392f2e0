-- thin_activity: add up the counts of earlier minutes by quarters of an hour, and those of earlier days by two hours;
-- delete those of more than eight days ago.
--
--   $1 how many rows to add up, at most
--
-- Minutes stay for 75 minutes, quarters for 26 hours: a piece is added up once it is whole, and after every page has
-- stopped asking for its parts. Reads only the last hours before each of the two ages: without a scan for longer, no
-- worker has counted anything. Two workers at once add nothing twice: each deleted row is one worker's.
-- Made of parts: `scripts/statement thin_activity` prints it whole.
WITH ages AS (
    SELECT date_bin('15 minutes', statement_timestamp() - interval '75 minutes', 'epoch') AS hour,
           date_bin('2 hours', statement_timestamp() - interval '26 hours', 'epoch') AS day
), forgotten AS (
    DELETE FROM tenure.activity WHERE minute < statement_timestamp() - interval '8 days'
), due AS MATERIALIZED (
    SELECT minute, queue, piece
      FROM (SELECT minute, queue, date_bin('15 minutes', minute, 'epoch') AS piece
              FROM tenure.activity
             WHERE minute >= (SELECT hour FROM ages) - interval '3 hours' AND minute < (SELECT hour FROM ages)
             UNION ALL
            SELECT minute, queue, date_bin('2 hours', minute, 'epoch')
              FROM tenure.activity
             WHERE minute >= (SELECT day FROM ages) - interval '6 hours' AND minute < (SELECT day FROM ages)) old
     WHERE minute <> piece
     ORDER BY minute, queue
     LIMIT $1::bigint
), taken AS (
    DELETE FROM tenure.activity a USING due WHERE a.minute = due.minute AND a.queue = due.queue
    RETURNING due.piece, a.*
)
INSERT INTO tenure.activity AS a
       (minute, queue, claimed, completed, unkept, retried, snoozed, failed, cancelled, released, waited, ran)
SELECT piece, queue,
-- include history/parts/activity_sums.sql
  FROM taken
 GROUP BY piece, queue
 ORDER BY piece, queue
-- include history/parts/activity_add.sql
