-- keep_last_executions: deletes the attempts of a job before its last hundred, at most a thousand in one call.
--
-- Called by the statements that end attempts (end_attempt.sql), with every fiftieth attempt of a job that has more than
-- a hundred: one that polls has one every few seconds, for ever.
-- SECURITY DEFINER: a worker may not delete what has happened, and can do no more than this; postgres/roles.sql takes
-- it from PUBLIC and grants it to workers.
-- A hundred by their tokens, which a claim raises by one: so two at once delete the same rows, and a lost answer costs
-- nothing.
CREATE OR REPLACE FUNCTION tenure.keep_last_executions(job uuid) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM tenure.job_executions
     WHERE job_id = job
       AND fencing_token IN (
           SELECT e.fencing_token FROM tenure.job_executions e
            WHERE e.job_id = job
              AND e.fencing_token <= (SELECT max(l.fencing_token) - 100
                                        FROM tenure.job_executions l WHERE l.job_id = job)
            ORDER BY e.fencing_token
            LIMIT 1000)
$$;
