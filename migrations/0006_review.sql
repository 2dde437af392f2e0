-- Attempts that did not end their job are kept up to a number: a job that polls has one every few seconds, for ever.

-- Forgets all attempts of a job but the last hundred, a thousand at a time. Whoever calls it may do no more than that.
-- SECURITY DEFINER: a worker may not delete what has happened.
CREATE FUNCTION tenure.keep_last_executions(job uuid) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM tenure.job_executions
     WHERE job_id = job
       AND fencing_token IN (
           SELECT e.fencing_token FROM tenure.job_executions e
            WHERE e.job_id = job
              AND e.fencing_token <= (SELECT max(l.fencing_token) - 100 FROM tenure.job_executions l WHERE l.job_id = job)
            ORDER BY e.fencing_token
            LIMIT 1000)
$$;
-- Until postgres/roles.sql runs again: workers call it in the statement that ends their attempts.
GRANT EXECUTE ON FUNCTION tenure.keep_last_executions(uuid) TO PUBLIC;
