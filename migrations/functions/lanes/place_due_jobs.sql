-- Gives held jobs whose time has come a place in their lane, and wakes these lanes: at most 1,000 jobs a call.
--
-- Called by `tend_lanes` alone, with its rights, its search_path and its settings for plans.
-- Two calls at once take different wakes. A transaction that moves a job on has written another wake, and may stay open
-- for long: the wake of a locked job is put off for a second, so that it does not come before the others again.
CREATE OR REPLACE FUNCTION tenure.place_due_jobs(moment timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    WITH due AS MATERIALIZED (
        SELECT w.at, w.id, w.queue, w.lane, w.job_id FROM tenure.lane_wakes w
         WHERE w.at <= moment AND w.job_id IS NOT NULL
         ORDER BY w.at, w.id LIMIT 1000 FOR UPDATE SKIP LOCKED
    ), job AS MATERIALIZED (
        SELECT l.job_id FROM tenure.lane_jobs l
         WHERE l.job_id = ANY (ARRAY(SELECT job_id FROM due))
           FOR UPDATE SKIP LOCKED
    ), placed AS (
        UPDATE tenure.lane_jobs l
           SET place = (extract(epoch FROM l.due_at) * 1000000)::bigint
         WHERE l.job_id = ANY (ARRAY(SELECT job_id FROM job)) AND l.place IS NULL AND l.due_at <= moment
    ), gone AS (
        DELETE FROM tenure.lane_wakes w
         USING due
         WHERE w.at = due.at AND w.id = due.id
           AND (due.job_id IN (SELECT job_id FROM job)
                OR NOT EXISTS (SELECT FROM tenure.lane_jobs l WHERE l.job_id = due.job_id))
        RETURNING w.queue, w.lane
    ), put_off AS (
        UPDATE tenure.lane_wakes w
           SET at = moment + interval '1 second'
          FROM due
         WHERE w.at = due.at AND w.id = due.id
           AND NOT (due.job_id IN (SELECT job_id FROM job)
                    OR NOT EXISTS (SELECT FROM tenure.lane_jobs l WHERE l.job_id = due.job_id))
    )
    INSERT INTO tenure.lane_wakes (at, queue, lane) SELECT DISTINCT moment, queue, lane FROM gone;
END $$;

REVOKE ALL ON FUNCTION tenure.place_due_jobs(timestamptz) FROM PUBLIC;
