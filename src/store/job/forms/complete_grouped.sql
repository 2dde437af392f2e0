-- complete_grouped: complete_told.sql for jobs of which some may have others that wait for them.
--
--   $1 to $5 as in complete_told.sql
--
-- Settles their edges itself, many at a time, and says so to the trigger of groups, which would note each end for a look
-- at its edges later. See tenure.settle_edges in migrations/0026_settled_edges.sql.
-- Made of parts: `scripts/statement complete_grouped` prints it whole.
WITH done AS (
    DELETE FROM tenure.jobs j
     WHERE (SELECT set_config('lock_timeout', '100ms', true) || set_config('tenure.completes', 'settled', true)) IS NOT NULL
-- include job/parts/complete_mine.sql
    RETURNING CASE WHEN $4::text[] IS NOT NULL
                   THEN ($4::text[])[width_bucket(j.id, $1::uuid[])] END AS output,
              CASE WHEN $5::text[] IS NOT NULL
                   THEN ($5::text[])[width_bucket(j.id, $1::uuid[])]::jsonb END AS report, j.*
)
-- include job/parts/complete_move_told.sql
 WHERE (SELECT tenure.settle_edges(array_agg(id ORDER BY id), array_agg(output::jsonb ORDER BY id)) FROM done WHERE group_id IS NOT NULL)
