-- Returns the time from which on a look at lane_wakes or job_expiries begins: only transactions that were open for more
-- than a minute have added rows before it. One call of a hundred sees all rows, finds those, and moves the mark to the
-- oldest row. In a table of up to 16 pages each look begins at the start, and nothing is written.
--
--   of: 'lane_wakes' or 'job_expiries'
--
-- `tend_lanes` and `place_due_jobs` call it, and the worker with the turn (src/store/job/expire.sql, lanes_overdue.sql,
-- take_turns.sql). A lost answer costs nothing.
-- SECURITY DEFINER: a worker may not write marks, by which others pass over rows.
-- Without it, a transaction that stays open costs each look all rows that were worked off since it began: no vacuum can
-- remove them. Two calls at once: the second one leaves the mark alone. A mark that lies ahead of the clock, which has
-- stepped back, does not count. An open transaction that deletes a row still shows it: the mark stays before it.
CREATE OR REPLACE FUNCTION tenure.look_from(of text) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    mark   timestamptz;
    oldest timestamptz;
BEGIN
    IF pg_relation_size(format('tenure.%I', look_from.of)) <= 16 * 8192 THEN
        RETURN '-infinity';
    END IF;
    mark := (SELECT m.at FROM tenure.looks_from m WHERE m.relation = look_from.of);
    IF mark > '-infinity' AND mark <= moment AND random() > 0.01 THEN
        RETURN mark;
    END IF;
    oldest := CASE look_from.of WHEN 'lane_wakes' THEN (SELECT min(w.at) FROM tenure.lane_wakes w)
                                WHEN 'job_expiries' THEN (SELECT min(e.at) FROM tenure.job_expiries e) END;
    oldest := least(oldest, moment - interval '1 minute');
    -- Not at each look: the open transaction keeps every old version of this row, too.
    UPDATE tenure.looks_from m SET at = oldest
     WHERE m.relation = look_from.of AND (m.at > oldest OR m.at < oldest - interval '10 seconds')
       AND EXISTS (SELECT FROM tenure.looks_from o WHERE o.relation = look_from.of FOR NO KEY UPDATE SKIP LOCKED);
    RETURN oldest;
END $$;

-- A role that an operator made for the release before needs no new right. A caller learns a time, and no more.
GRANT EXECUTE ON FUNCTION tenure.look_from(text) TO PUBLIC;
