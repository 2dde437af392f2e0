-- once: claim an effect of a job inside the user's transaction.
--
--   $1 job id  $2 key  $3 token
--
-- One row: this transaction does the effect. No row: an attempt did it already; read effect.sql.
-- A second attempt waits here for the first one's commit.
INSERT INTO tenure.effects (job_id, key, fencing_token, result)
VALUES ($1, $2, $3, 'null')
ON CONFLICT (job_id, key) DO NOTHING
RETURNING job_id
