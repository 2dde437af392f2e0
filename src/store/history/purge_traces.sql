-- purge_traces: delete attempts and effects of jobs that are gone.
--
--   $1 after this id  $2 jobs to look at
SELECT gone, last FROM tenure.purge_traces($1, $2)
