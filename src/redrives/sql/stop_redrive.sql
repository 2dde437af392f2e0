-- stop_redrive: ends a calm redrive. The jobs that it has redriven run on.
--
--   $1 id  $2 who acts: by what, and the name
--
-- One row, if it was open.
WITH stopped AS (
    UPDATE tenure.redrives SET state = 'cancelled', ended_at = clock_timestamp()
     WHERE id = $1 AND ended_at IS NULL
    RETURNING id, selection, jobs - redriven AS spared
), forgotten AS (
    DELETE FROM tenure.redrive_jobs o USING stopped WHERE o.redrive_id = stopped.id
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue, subject, jobs)
    SELECT ($2::text[])[1], ($2::text[])[2], 'stop_redrive', selection->>'queue', id::text, spared
      FROM stopped
)
SELECT id FROM stopped
