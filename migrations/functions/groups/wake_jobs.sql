-- Makes queued jobs due now whose time has not come: at the relay's next look, or in their lanes, which `tend_lanes`
-- then admits. A job that pauses before a retry stays as it is: the pause ends by itself, and the attempt then sees
-- what has come.
--
-- `signal`, `replace_job`, `release_into_lanes` and `wake_step_jobs` call it. They have locked the rows of the jobs,
-- and run with the rights of the schema's owner: a producer may wake no job of another one.
-- It may wait for places in lanes, whose rows it changes: `lock_timeout` of its caller ends that wait.
CREATE OR REPLACE FUNCTION tenure.wake_jobs(ids uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    never  CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    moment CONSTANT timestamptz := clock_timestamp();
    jobs   CONSTANT uuid[] := ARRAY(
        SELECT u.id FROM unnest(ids) AS u(id)
         WHERE (SELECT e.outcome FROM tenure.job_executions e
                 WHERE e.job_id = u.id ORDER BY e.fencing_token DESC LIMIT 1) IS DISTINCT FROM 'retried');
BEGIN
    -- They were held before their queue had lanes.
    WITH placed AS (
        INSERT INTO tenure.lane_jobs (job_id, queue, lane, priority, due_at)
        SELECT j.id, j.queue, coalesce(j.lane, ''), CASE WHEN s.ordered THEN 0 ELSE coalesce(j.priority, 0) END, never
          FROM tenure.jobs j
          JOIN tenure.lane_settings s ON s.queue = j.queue AND s.removed_at IS NULL
         WHERE j.id = ANY (jobs) AND j.status = 'queued' AND (j.publish_at = never) IS TRUE
            ON CONFLICT (job_id) DO NOTHING
        RETURNING job_id, lane
    )
    UPDATE tenure.jobs j
       SET lane = p.lane, priority = coalesce(j.priority, 0)
      FROM placed p WHERE j.id = p.job_id AND j.lane IS NULL;
    WITH lined_up AS (
        UPDATE tenure.lane_jobs l
           SET due_at = moment,
               place = CASE WHEN coalesce((SELECT s.ordered FROM tenure.lane_settings s WHERE s.queue = l.queue), false)
                            THEN 0 ELSE (extract(epoch FROM moment) * 1000000)::bigint END
         WHERE l.job_id = ANY (jobs) AND l.due_at > moment
        RETURNING l.queue, l.lane
    )
    INSERT INTO tenure.lane_wakes (at, queue, lane) SELECT DISTINCT moment, queue, lane FROM lined_up;
    UPDATE tenure.jobs j
       SET scheduled_at = moment, publish_at = moment, published_at = NULL
     WHERE j.id = ANY (jobs) AND j.status = 'queued' AND (j.publish_at > moment) IS TRUE
       AND NOT EXISTS (SELECT FROM tenure.lane_jobs l WHERE l.job_id = j.id);
END $$;

REVOKE ALL ON FUNCTION tenure.wake_jobs(uuid[]) FROM PUBLIC;
