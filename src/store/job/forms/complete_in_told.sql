-- complete_in_told: complete_in.sql for a job whose last report is not written yet.
--
--   $1 to $4 as in complete_in.sql  $5 report (JSON text: stage, progress, message); a missing field stays as it is
--
-- Made of parts: `scripts/statement complete_in_told` prints it whole.
-- include job/parts/complete_locked.sql
       FOR UPDATE OF j
), done AS (
    DELETE FROM tenure.jobs j
     USING mine
     WHERE j.id = mine.id
       AND j.id = ANY (ARRAY(SELECT id FROM mine))
    RETURNING mine.output, $5::text::jsonb AS report, j.*
)
-- include job/parts/complete_move_told.sql
