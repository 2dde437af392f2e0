-- passed_mark: until when a published job cannot have a message left.
--
--   $1 the stream's creation  $2 the last sequence that the queue's consumer has delivered
--   $3 seconds that a publication may take
--
-- A job published before a mark whose last sequence was passed, or before a mark of a stream that is
-- gone. NULL: nothing is known.
SELECT greatest(
       (SELECT max(marked_at) FROM tenure.relay_marks WHERE stream_created = $1 AND last_seq <= $2)
           - $3::float8 * interval '1 second',
       (SELECT max(marked_at) FROM tenure.relay_marks WHERE stream_created <> $1)) AS before
