-- complete_grouped_told: complete_told.sql for jobs of which some may have others that wait for them.
--
--   $1 to $5 as in complete_told.sql
--
-- Made of parts: `scripts/statement complete_grouped_told` prints it whole.
WITH done AS (
    DELETE FROM tenure.jobs j
     WHERE (SELECT set_config('lock_timeout', '100ms', true) || set_config('tenure.completes', 'settled', true)) IS NOT NULL
-- include job/parts/complete_mine.sql
    RETURNING CASE WHEN $4::text[] IS NOT NULL
                   THEN ($4::text[])[width_bucket(j.id, $1::uuid[])] END AS output,
              ($5::text[])[width_bucket(j.id, $1::uuid[])]::jsonb AS report, j.*
)
-- include job/parts/complete_move_told.sql
-- include job/parts/complete_edges.sql
