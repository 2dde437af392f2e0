-- add_mark: record what the stream held at a moment, unless another mark was made just before.
--
--   $1 the database's time, read *before* the stream was asked  $2 the stream's creation  $3 its last sequence
--   $4 shortest gap between marks in seconds
--
-- Of the marks older than an hour one in fifteen stays, and those older than a week are deleted: a newer mark proves as
-- much, a little later. A mark in the future is of a clock that was ahead: it says nothing about what is published now.
WITH pruned AS (
    DELETE FROM tenure.relay_marks
     WHERE marked_at < $1::timestamptz - interval '7 days'
        OR marked_at > statement_timestamp()
        OR marked_at BETWEEN $1::timestamptz - interval '70 minutes' AND $1::timestamptz - interval '1 hour'
           AND id % 15 <> 0
)
INSERT INTO tenure.relay_marks (marked_at, stream_created, last_seq)
SELECT $1::timestamptz, $2::text, $3::bigint
 WHERE NOT EXISTS (
       SELECT FROM tenure.relay_marks
        WHERE marked_at > $1::timestamptz - $4::float8 * interval '1 second' AND marked_at <= statement_timestamp()
          AND stream_created = $2)
