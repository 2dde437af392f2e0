-- Gives held jobs whose time has come a place in their lane, and wakes these lanes: at most 1,000 jobs a call.
--
-- Called by `tend_lanes` alone, with its rights, its search_path and its settings for plans.
-- Two calls at once take different wakes. A transaction that moves a job on has written another wake, and may stay open
-- for long: the wake of a locked job is put off for a second, so that it does not come before the others again.
CREATE OR REPLACE FUNCTION tenure.place_due_jobs(moment timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    wakes_from CONSTANT timestamptz := tenure.look_from('lane_wakes');
BEGIN
    WITH due AS MATERIALIZED (
        SELECT w.ctid AS place, w.job_id FROM tenure.lane_wakes w
         WHERE w.at BETWEEN wakes_from AND moment AND w.job_id IS NOT NULL
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
        -- By place: a join may go through the whole table, also where nothing is due.
        DELETE FROM tenure.lane_wakes w
         WHERE w.ctid = ANY (ARRAY(
               SELECT d.place FROM due d
                WHERE d.job_id IN (SELECT job_id FROM job)
                   OR (SELECT true FROM tenure.lane_jobs l WHERE l.job_id = d.job_id) IS NULL))
        RETURNING w.queue, w.lane
    ), put_off AS (
        UPDATE tenure.lane_wakes w
           SET at = moment + interval '1 second'
         WHERE w.ctid = ANY (ARRAY(
               SELECT d.place FROM due d
                WHERE d.job_id NOT IN (SELECT job_id FROM job)
                  AND (SELECT true FROM tenure.lane_jobs l WHERE l.job_id = d.job_id) IS NOT NULL))
    )
    INSERT INTO tenure.lane_wakes (at, queue, lane) SELECT DISTINCT moment, queue, lane FROM gone;
END $$;

REVOKE ALL ON FUNCTION tenure.place_due_jobs(timestamptz) FROM PUBLIC;
