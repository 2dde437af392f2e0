-- end_quarantine: let the jobs of a kind run again. The rule stays, and counts from now.
--
--   $1 kind  $2 who acts: by what, and the name
--
-- One row, unless the kind is not in quarantine.
WITH freed AS (
    UPDATE tenure.quarantines
       SET began_at = NULL, counted_from = clock_timestamp(), probe_job = NULL, probe_token = NULL, next_probe_at = NULL
     WHERE kind = $1 AND began_at IS NOT NULL
    RETURNING kind
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, subject, jobs)
    SELECT ($2::text[])[1], ($2::text[])[2], 'end_quarantine', kind,
           (SELECT count(*) FROM tenure.quarantined_jobs w WHERE w.kind = freed.kind)
      FROM freed
)
SELECT kind FROM freed
