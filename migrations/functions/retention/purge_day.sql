-- purge_day: removes one day of the history: the oldest whose every job is old enough. Returns how many jobs it held;
-- no row: no day is old enough, or another session holds it, and the next sweep tries again.
--
-- Called by purge_day.sql, of a worker's sweep. keep_cancelled NULL: cancelled jobs are kept for ever.
-- SECURITY DEFINER: a worker does not own the table; nothing younger than an hour goes (tenure.check_age).
-- Only late completions of jobs of that day wait for it. It waits for a lock for at most 100 ms, and gives up. A day
-- that cannot go for another reason (a view on it, an unreadable page) keeps no later day: once none of them is left,
-- its error is raised. One worker sweeps at a time (purge_gate.sql). After a lost answer the sweep goes on with the
-- next day.
CREATE OR REPLACE FUNCTION tenure.purge_day(keep_completed interval, keep_cancelled interval)
RETURNS TABLE (completed bigint, cancelled bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    day     text;
    is_kept boolean;
    trouble text;
    code    text;
BEGIN
    IF tenure.check_age(keep_completed) IS NULL THEN
        RETURN;
    END IF;
    PERFORM tenure.check_age(keep_cancelled);
    FOR day IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'tenure.job_history'::regclass AND c.relname ~ '^job_history_[0-9]{8}$'
         ORDER BY c.relname
    LOOP
        -- Those of today and yesterday are made anew as soon as they are missed.
        EXIT WHEN (to_date(right(day, 8), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC'
                  > least(statement_timestamp() - keep_completed,
                          date_trunc('day', statement_timestamp(), 'UTC') - interval '1 day');
        BEGIN
            EXECUTE format(
                'SELECT EXISTS (SELECT FROM tenure.%I WHERE NOT coalesce(finished_at < statement_timestamp()
                                     - CASE status WHEN ''completed'' THEN $1 ELSE $2 END, false))', day)
               INTO is_kept USING keep_completed, keep_cancelled;
            CONTINUE WHEN is_kept;
            EXECUTE format(
                'UPDATE tenure.job_keys k SET ended_at = h.finished_at FROM tenure.%I h
                  WHERE k.job_id = h.id AND h.finished_at > h.created_at + interval ''1 hour''', day);
            -- And again under the lock: a job that completes in between would be lost. It waits, and then finds no such
            -- day. The drop locks the whole history for a moment, and gives up if a long read holds it.
            EXECUTE format('LOCK TABLE tenure.%I IN SHARE ROW EXCLUSIVE MODE', day);
            EXECUTE format(
                'SELECT count(*) FILTER (WHERE status = ''completed''), count(*) FILTER (WHERE status = ''cancelled''),
                        coalesce(bool_or(NOT coalesce(finished_at < statement_timestamp()
                                 - CASE status WHEN ''completed'' THEN $1 ELSE $2 END, false)), false)
                   FROM tenure.%I', day)
               INTO completed, cancelled, is_kept USING keep_completed, keep_cancelled;
            IF NOT is_kept THEN
                EXECUTE format('DROP TABLE tenure.%I', day);
                RETURN NEXT;
                RETURN;
            END IF;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN RETURN;
            WHEN OTHERS THEN
                trouble := format('%s: %s', day, SQLERRM);
                code := SQLSTATE;
        END;
    END LOOP;
    IF trouble IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = trouble, ERRCODE = code;
    END IF;
END $$;

REVOKE ALL ON FUNCTION tenure.purge_day(interval, interval) FROM PUBLIC;
