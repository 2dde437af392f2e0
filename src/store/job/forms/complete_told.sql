-- complete_told: complete.sql for jobs of which some have a last report that is not written yet.
--
--   $1 to $4 as in complete.sql  $5 reports (JSON text: stage, progress, message), or NULL: none; a missing field stays
--   as it is
--
-- Saves the write of a progress that the completion would at once move into the history.
-- Made of parts: `scripts/statement complete_told` prints it whole.
WITH done AS (
    DELETE FROM tenure.jobs j
     WHERE (SELECT set_config('lock_timeout', '100ms', true) || set_config('tenure.completes', 'on', true)) IS NOT NULL
-- include job/parts/complete_mine.sql
    RETURNING CASE WHEN $4::text[] IS NOT NULL
                   THEN ($4::text[])[width_bucket(j.id, $1::uuid[])] END AS output,
              ($5::text[])[width_bucket(j.id, $1::uuid[])]::jsonb AS report, j.*
)
-- include job/parts/complete_move_told.sql
