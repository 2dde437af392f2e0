-- lanes_overdue: whether no worker looks after the lanes, although one should have for some time.
--
--   $1 seconds
SELECT EXISTS (SELECT FROM tenure.lanes WHERE next_at < statement_timestamp() - $1::float8 * interval '1 second')
       OR EXISTS (SELECT FROM tenure.lane_wakes
                   WHERE at >= (SELECT tenure.look_from('lane_wakes'))
                     AND at < statement_timestamp() - $1::float8 * interval '1 second') AS overdue
