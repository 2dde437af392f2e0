-- stop_redrive: ends a calm redrive. The jobs that it has redriven run on.
--
--   $1 id
--
-- One row, if it was open.
WITH stopped AS (
    UPDATE tenure.redrives SET state = 'cancelled', ended_at = clock_timestamp()
     WHERE id = $1 AND ended_at IS NULL
    RETURNING id
), forgotten AS (
    DELETE FROM tenure.redrive_jobs o USING stopped WHERE o.redrive_id = stopped.id
)
SELECT id FROM stopped
