-- tend_redrives: goes on with the calm redrives that are open: migrations/0020_calm.sql.
--
--   $1 the most jobs of each redrive
--
-- One row a redrive whose state has changed.
SELECT redrive_id, now_state, redriven, failed, jobs, why FROM tenure.tend_redrives($1)
