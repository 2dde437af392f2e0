-- Lets no time of before decide, once the clock has stepped back: a time that lies further ahead than `stored_times`
-- allows counts as now; what was due before the step stays due; and a pause that began ahead of the clock begins anew.
-- What a caller chose stays.
--
-- src/store/recover/follow_clock.sql calls it: a worker that has found the last scan ahead of the clock, before it
-- scans, so that the next one does it if this one dies. A step that is shorter than the time between scans is not
-- found, and costs no more than that. What a job's row or attempt says of the last minute was written after the step.
-- SECURITY DEFINER: a worker may not change lanes, effects and redrives.
-- Two calls at once: the second one finds a last scan that does not lie ahead, and changes nothing. Rows that others
-- have locked are passed over: those write times of now.
CREATE OR REPLACE FUNCTION tenure.follow_clock() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    never  CONSTANT timestamptz := '9998-01-01 00:00:00+00';
    -- The clock before the step was no earlier.
    before timestamptz;
    of     record;
BEGIN
    -- "tenurefc" in ASCII.
    PERFORM pg_advisory_xact_lock(x'74656e7572656663'::bigint);
    SELECT s.last_scan_at INTO before FROM tenure.scanner_state s;
    IF (before > clock_timestamp()) IS NOT TRUE THEN
        RETURN;
    END IF;
    FOR of IN SELECT relation,
                     string_agg(format('%1$I = CASE WHEN %1$I > $1 + %2$L THEN $1 ELSE %1$I END', name, ahead),
                                ', ') AS set,
                     string_agg(format('%I > $1 + %L', name, ahead), ' OR ') AS lies_ahead
                FROM tenure.stored_times() WHERE ahead IS NOT NULL GROUP BY relation ORDER BY relation LOOP
        EXECUTE format('UPDATE tenure.%1$I SET %2$s WHERE ctid = ANY (ARRAY(
                            SELECT ctid FROM tenure.%1$I WHERE %3$s FOR NO KEY UPDATE SKIP LOCKED))',
                       of.relation, of.set, of.lies_ahead) USING moment;
    END LOOP;
    UPDATE tenure.effects e SET began_at = moment, wakes_at = moment + (e.wakes_at - e.began_at)
     WHERE e.ctid = ANY (ARRAY(SELECT ctid FROM tenure.effects
                                WHERE began_at > moment AND wakes_at > began_at FOR NO KEY UPDATE SKIP LOCKED));
    -- The wake of a job that is due then stays: its time was chosen by somebody.
    UPDATE tenure.lane_wakes w SET at = moment
     WHERE w.ctid = ANY (ARRAY(SELECT ctid FROM tenure.lane_wakes
                                WHERE at > moment AND job_id IS NULL FOR NO KEY UPDATE SKIP LOCKED));
    -- A pause of a job is that before a retry, of a snooze, of a sleep. A kind without history has no record of its
    -- beginning.
    UPDATE tenure.lane_jobs l SET due_at = moment + p.rest
      FROM (SELECT l.job_id,
                   CASE WHEN l.due_at > before AND e.finished_at > moment THEN l.due_at - e.finished_at
                        ELSE interval '0' END AS rest
              FROM tenure.lane_jobs l
              JOIN tenure.jobs j ON j.id = l.job_id
              LEFT JOIN tenure.job_executions e ON e.job_id = j.id AND e.fencing_token = j.fencing_token
             WHERE l.due_at > moment AND l.due_at < never
               AND greatest(j.created_at, e.finished_at) NOT BETWEEN moment - interval '1 minute' AND moment
               AND (l.due_at <= before OR l.due_at <= j.created_at + interval '1 second'
                 OR e.finished_at > moment AND l.due_at > e.finished_at)
               FOR NO KEY UPDATE OF l SKIP LOCKED) p
     WHERE l.job_id = p.job_id;
    UPDATE tenure.lane_wakes w SET at = greatest(l.due_at, moment)
      FROM tenure.lane_jobs l
     WHERE w.job_id = l.job_id AND w.at > l.due_at AND w.at > moment;
    UPDATE tenure.jobs j
       SET scheduled_at = moment + p.rest,
           publish_at = CASE WHEN j.publish_at IS NOT NULL THEN moment + p.rest END
      FROM (SELECT j.id,
                   CASE WHEN j.scheduled_at > before AND e.finished_at > moment THEN j.scheduled_at - e.finished_at
                        ELSE interval '0' END AS rest
              FROM tenure.jobs j
              LEFT JOIN tenure.job_executions e ON e.job_id = j.id AND e.fencing_token = j.fencing_token
             WHERE j.status = 'queued' AND j.scheduled_at > moment AND j.scheduled_at < never
               AND greatest(j.created_at, e.finished_at) NOT BETWEEN moment - interval '1 minute' AND moment
               AND (j.scheduled_at <= before OR j.scheduled_at <= j.created_at + interval '1 second'
                 OR e.finished_at > moment AND j.scheduled_at > e.finished_at)
               FOR NO KEY UPDATE OF j SKIP LOCKED) p
     WHERE j.id = p.id;
    UPDATE tenure.jobs j SET publish_at = moment
     WHERE j.id = ANY (ARRAY(SELECT o.id FROM tenure.jobs o
                              WHERE o.status = 'queued' AND o.scheduled_at <= moment AND o.publish_at > moment
                                AND o.publish_at < never
                                FOR NO KEY UPDATE SKIP LOCKED));
    -- The next scan is due, and a gap precedes it.
    UPDATE tenure.scanner_state s SET last_scan_at = moment - interval '1 day';
END $$;

REVOKE ALL ON FUNCTION tenure.follow_clock() FROM PUBLIC;
