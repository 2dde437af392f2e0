-- remove_quarantine: watch a kind no more. Its quarantine ends, and the worker that tends them calls the jobs that wait.
--
--   $1 kind  $2 who acts: by what, and the name
--
-- One row, unless the kind was not watched.
WITH removed AS (
    UPDATE tenure.quarantines
       SET removed_at = clock_timestamp(), began_at = NULL, counted_from = clock_timestamp(),
           probe_job = NULL, probe_token = NULL, next_probe_at = NULL
     WHERE kind = $1 AND removed_at IS NULL
    RETURNING kind
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, subject)
    SELECT ($2::text[])[1], ($2::text[])[2], 'remove_quarantine', kind FROM removed
)
SELECT kind FROM removed
