-- redrive: dead jobs go back to the queue, under the same id.
--
--   $1 ids
--
-- One row a redriven job. What that means for its attempts, its token and its group: `tenure.redrive` in
-- migrations/0020_calm.sql.
SELECT id FROM tenure.redrive($1) AS id
