-- passed_mark: the time before which no published job can have a message left.
--
--   $1 the stream's creation  $2 the last sequence that the queue's consumer has delivered
--   $3 seconds that a publication may take
--
-- A mark proves this for jobs published before it, once the consumer has passed the mark's last sequence, or once the
-- mark's stream is gone. A mark in the future is of a clock that was ahead, and proves nothing. NULL: no mark proves
-- anything.
SELECT greatest(
       (SELECT max(marked_at) FROM tenure.relay_marks WHERE stream_created = $1 AND last_seq <= $2
                                                       AND marked_at <= statement_timestamp())
           - $3::float8 * interval '1 second',
       (SELECT max(marked_at) FROM tenure.relay_marks WHERE stream_created <> $1
                                                       AND marked_at <= statement_timestamp())) AS before
