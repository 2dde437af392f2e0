-- Makes those of these held jobs due in their lanes that have one, and returns the others. `tend_lanes` admits them
-- later.
--
-- Part of `release_held_jobs`, with its rights and settings. It waits 100 ms for places in lanes: see
-- `release_held_jobs`. A job that is locked, or whose place is, is noted anew.
CREATE OR REPLACE FUNCTION tenure.release_into_lanes(jobs uuid[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    never CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    laned_jobs    uuid[];
    locked_here   uuid[];
    deferred_jobs uuid[];
    job           uuid;
BEGIN
    -- Without lanes, a look at each job takes 10 to 13 % of a call where one job comes before 10,000.
    IF NOT EXISTS (SELECT FROM tenure.lane_settings) AND NOT EXISTS (SELECT FROM tenure.lane_jobs) THEN
        RETURN jobs;
    END IF;
    laned_jobs := ARRAY(
        SELECT j.id FROM tenure.jobs j
         WHERE j.id = ANY (jobs) AND j.status = 'queued' AND (j.publish_at = never) IS TRUE
           -- One that its lane holds until a time has gone before, and pauses.
           AND coalesce((SELECT l.due_at >= never FROM tenure.lane_jobs l WHERE l.job_id = j.id),
                        EXISTS (SELECT FROM tenure.lane_settings s WHERE s.queue = j.queue AND s.removed_at IS NULL)));
    IF laned_jobs = '{}' THEN
        RETURN jobs;
    END IF;
    SELECT array_agg(j.id) INTO locked_here
      FROM (SELECT j.id FROM tenure.jobs j WHERE j.id = ANY (laned_jobs) ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED) j;
    deferred_jobs := ARRAY(SELECT unnest(laned_jobs) EXCEPT SELECT unnest(locked_here));
    BEGIN
        IF locked_here IS NOT NULL THEN
            PERFORM tenure.wake_jobs(locked_here);
        END IF;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        -- A place in a lane is locked.
        FOREACH job IN ARRAY locked_here LOOP
            BEGIN
                PERFORM tenure.wake_jobs(ARRAY[job]);
            EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
                deferred_jobs := deferred_jobs || job;
            END;
        END LOOP;
    END;
    INSERT INTO tenure.group_ends (job_id, ended_as) SELECT d.id, 'settled' FROM unnest(deferred_jobs) AS d(id);
    RETURN ARRAY(SELECT unnest(jobs) EXCEPT SELECT unnest(laned_jobs));
END $$;

REVOKE ALL ON FUNCTION tenure.release_into_lanes(uuid[]) FROM PUBLIC;
