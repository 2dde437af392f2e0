-- take_probe: try this job, if a probe of its kind is due and no other worker has taken it.
--
--   $1 kind  $2 job  $3 its token  $4 whether the job leaves no row once it has completed
--
-- One row: 'probe'; 'ended', and the kind is in quarantine no more; or 'wait'.
-- The job is claimed, so that its end under this token says how the probe has ended, also if the worker dies.
WITH taken AS (
    UPDATE tenure.quarantines
       SET probe_job = $2, probe_token = $3, probe_keeps_nothing = $4, probes = probes + 1, next_probe_at = NULL
     WHERE kind = $1 AND began_at IS NOT NULL AND probe_job IS NULL
       -- A clock that was ahead for a while may have left a time far off.
       AND (next_probe_at <= statement_timestamp() OR next_probe_at > statement_timestamp() + probe_every)
    RETURNING kind
), called AS (
    DELETE FROM tenure.quarantined_jobs w USING taken WHERE w.kind = taken.kind AND w.job_id = $2
)
SELECT CASE WHEN EXISTS (SELECT FROM taken) THEN 'probe'
            WHEN EXISTS (SELECT FROM tenure.quarantines WHERE kind = $1 AND began_at IS NOT NULL) THEN 'wait'
            ELSE 'ended' END AS answer
