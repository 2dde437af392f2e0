-- purge_keys: deletes the keys of jobs that are neither live nor dead letters, and ended longer than `keep` ago, of the
-- `step` keys after the job `after`. Returns how many, and the last job that it has looked at; NULL: it has come to the
-- end.
--
-- Called by purge_keys.sql, of a worker's sweep, again and again with the last answer.
-- SECURITY DEFINER: a worker may not delete keys; this deletes none of a job that ended within the last hour
-- (tenure.check_age).
-- The identity of a submission goes only once its message has left the stream, whose first sequence is `first_seq`
-- (NULL: not known, and none goes): until then the message may be delivered again. A key that was taken anew meanwhile
-- names another job, and stays.
CREATE OR REPLACE FUNCTION tenure.purge_keys(keep interval, first_seq bigint, after uuid, step int)
RETURNS TABLE (gone bigint, last uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM tenure.check_age(keep);
    RETURN QUERY
    WITH part AS MATERIALIZED (
        SELECT k.scope, k.key, k.job_id, coalesce(k.ended_at, k.created_at) AS ended_at, k.stream_seq
          FROM tenure.job_keys k
         WHERE k.job_id > after AND k.job_id < tenure.id_of_time(statement_timestamp() - keep)
         ORDER BY k.job_id LIMIT step
    ), purged AS (
        DELETE FROM tenure.job_keys k USING part s
         WHERE k.scope = s.scope AND k.key = s.key AND k.job_id = s.job_id
           AND s.ended_at < statement_timestamp() - keep
           AND (s.stream_seq IS NULL OR s.stream_seq < first_seq)
           AND NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = s.job_id)
           AND NOT EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = s.job_id)
           AND NOT EXISTS (SELECT FROM tenure.job_history h
                            WHERE h.id = s.job_id AND h.finished_at >= statement_timestamp() - keep)
        RETURNING k.job_id
    )
    SELECT (SELECT count(*) FROM purged), (SELECT s.job_id FROM part s ORDER BY s.job_id DESC LIMIT 1);
END $$;

REVOKE ALL ON FUNCTION tenure.purge_keys(interval, bigint, uuid, int) FROM PUBLIC;
