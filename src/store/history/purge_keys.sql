-- purge_keys: delete unique keys and identities of submissions, of jobs that ended long enough ago.
--
--   $1 seconds that they are kept  $2 the stream's first sequence, or NULL  $3 after this id  $4 keys to look at
SELECT gone, last FROM tenure.purge_keys($1::float8 * interval '1 second', $2, $3, $4)
