-- purge_rows: deletes finished jobs that are old enough and stand in days that cannot go yet, or in none, of the `step`
-- rows after the id `after`. Returns how many, and the last id that it has looked at; NULL: it has come to the end.
--
-- Called by purge_rows.sql, of a worker's sweep, again and again with the last answer. keep_cancelled NULL: cancelled
-- jobs are kept for ever.
-- SECURITY DEFINER: a worker may not delete what has happened; nothing younger than an hour goes (tenure.check_age).
-- The unique key of a job that ran long outlives it, and gets the time of its end, from which purge_keys counts.
-- Two at once delete each row once.
CREATE OR REPLACE FUNCTION tenure.purge_rows(keep_completed interval, keep_cancelled interval, after uuid, step int)
RETURNS TABLE (completed bigint, cancelled bigint, last uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM tenure.check_age(keep_completed), tenure.check_age(keep_cancelled);
    RETURN QUERY
    WITH part AS MATERIALIZED (
        SELECT h.id, h.status, h.finished_at FROM tenure.job_history h
         WHERE h.id > after
           AND h.id < tenure.id_of_time(date_trunc('day', statement_timestamp() - keep_completed, 'UTC'))
         ORDER BY h.id LIMIT step
    ), gone AS (
        DELETE FROM tenure.job_history h USING part s
         WHERE h.id = s.id
           AND s.finished_at < statement_timestamp()
                               - CASE s.status WHEN 'completed' THEN keep_completed ELSE keep_cancelled END
        RETURNING h.id, h.status, h.created_at, h.finished_at
    ), ended AS (
        UPDATE tenure.job_keys k SET ended_at = g.finished_at FROM gone g
         WHERE k.job_id = g.id AND g.finished_at > g.created_at + interval '1 hour'
    )
    SELECT count(*) FILTER (WHERE g.status = 'completed'), count(*) FILTER (WHERE g.status = 'cancelled'),
           (SELECT s.id FROM part s ORDER BY s.id DESC LIMIT 1)
      FROM gone g;
END $$;

REVOKE ALL ON FUNCTION tenure.purge_rows(interval, interval, uuid, int) FROM PUBLIC;
