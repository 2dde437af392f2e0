-- A job that waits for several things at once, such as an event and jobs of its own, is woken by each.

-- When the last of a running job's own jobs has ended, that is told to its attempt: the settle of the attempt compares when
-- they ended with when it began. That time was taken before the end was committed. An attempt that began in between, and that
-- did not see the end, went on waiting for something else, for ever. The row of the job is locked here and at the settle, so
-- this time is later than the beginning of each attempt that may not have seen it.
CREATE OR REPLACE FUNCTION tenure.wake_jobs(ids uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    never  CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    moment CONSTANT timestamptz := clock_timestamp();
    running uuid[];
BEGIN
    -- They were held before their queue had lanes.
    WITH late AS (
        INSERT INTO tenure.lane_jobs (job_id, queue, lane, priority, due_at)
        SELECT j.id, j.queue, coalesce(j.lane, ''), CASE WHEN s.ordered THEN 0 ELSE coalesce(j.priority, 0) END, never
          FROM tenure.jobs j
          JOIN tenure.lane_settings s ON s.queue = j.queue AND s.removed_at IS NULL
         WHERE j.id = ANY (ids) AND j.status = 'queued' AND (j.publish_at = never) IS TRUE
            ON CONFLICT (job_id) DO NOTHING
        RETURNING job_id, lane
    )
    UPDATE tenure.jobs j
       SET lane = late.lane, priority = coalesce(j.priority, 0)
      FROM late WHERE j.id = late.job_id AND j.lane IS NULL;
    WITH lined AS (
        UPDATE tenure.lane_jobs l
           SET due_at = moment,
               place = CASE WHEN coalesce((SELECT s.ordered FROM tenure.lane_settings s WHERE s.queue = l.queue), false)
                            THEN 0 ELSE (extract(epoch FROM moment) * 1000000)::bigint END
         WHERE l.job_id = ANY (ids) AND l.due_at > moment
        RETURNING l.queue, l.lane
    )
    INSERT INTO tenure.lane_wakes (at, queue, lane) SELECT DISTINCT moment, queue, lane FROM lined;
    UPDATE tenure.jobs j
       SET scheduled_at = moment, publish_at = moment, published_at = NULL
     WHERE j.id = ANY (ids) AND j.status = 'queued' AND (j.publish_at > moment) IS TRUE
       AND NOT EXISTS (SELECT FROM tenure.lane_jobs l WHERE l.job_id = j.id);
    running := ARRAY(SELECT j.id FROM tenure.jobs j WHERE j.id = ANY (ids) AND j.status = 'processing');
    IF running <> '{}' THEN
        UPDATE tenure.job_edges d
           SET ended_at = moment
         WHERE (d.after, d.n) IN (
               SELECT e.after, max(e.n)
                 FROM tenure.job_edges e
                WHERE e.after = ANY (running) AND e.step IS NOT NULL
                GROUP BY e.after, e.step
               HAVING bool_and(e.state IS NOT NULL));
    END IF;
END $$;
