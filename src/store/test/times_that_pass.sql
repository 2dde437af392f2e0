-- times_that_pass: the times that `advance` moves, by table. For tests.
--
-- Postgres's clock cannot be moved, so the stored times move: jobs and schedules come nearer, a running job looks silent
-- for longer, and past events are older. Ids, by which the history is partitioned, stay.
SELECT relation, array_agg(name ORDER BY name) AS names
  FROM tenure.stored_times() WHERE passes GROUP BY relation ORDER BY relation
