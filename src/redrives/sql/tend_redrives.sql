-- tend_redrives: goes on with the calm redrives that are open: migrations/functions/redrives/tend_redrives.sql.
--
--   $1 the most jobs of each redrive
--
-- One row a redrive that has changed.
SELECT redrive_id, has_changed, now_state, queued, redriven, failed, jobs, why FROM tenure.tend_redrives($1)
