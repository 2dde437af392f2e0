-- Gives a queued job the payload and the time of a later call (debounce): `due`, but at most `longest` after the job
-- was created. What earlier attempts of the job did, they did for the old payload, and is forgotten; a retry keeps
-- its pause.
--
-- Called by `take_key` alone, with its rights, its search_path and its settings for plans; it has locked the job's
-- row, so that no worker starts the job meanwhile.
CREATE OR REPLACE FUNCTION tenure.replace_job(job uuid, new_payload jsonb, due timestamptz,
                                              longest interval) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    never    CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    old      tenure.jobs;
    waits    boolean := false;
    is_held  boolean;
    due_then timestamptz;
    is_moved boolean;
BEGIN
    SELECT * INTO old FROM tenure.jobs j WHERE j.id = job;
    is_held := coalesce(old.publish_at = never, false);
    due_then := least(due, old.created_at + coalesce(longest, due - old.created_at));
    IF old.fencing_token > 0 THEN
        waits := EXISTS (SELECT FROM tenure.effects e WHERE e.job_id = job AND e.step_kind = 'awaited')
              OR EXISTS (SELECT FROM tenure.job_edges d WHERE d.after = job AND d.state IS NULL AND d.step IS NOT NULL);
        DELETE FROM tenure.effects e WHERE e.job_id = job;
        DELETE FROM tenure.job_edges d WHERE d.after = job AND d.step IS NOT NULL;
        -- The pause of a job that a lane holds stands in lane_jobs.
        due_then := greatest(due_then, CASE WHEN old.scheduled_at < never THEN old.scheduled_at END,
                             (SELECT l.due_at FROM tenure.lane_jobs l WHERE l.job_id = job AND l.due_at < never));
    END IF;
    -- Not if a lane holds it or it follows other jobs, its message is on its way, or it keeps its lane's slot.
    is_moved := NOT (waits OR is_held
                     OR due_then <= clock_timestamp() AND old.published_at IS NOT NULL
                     OR EXISTS (SELECT FROM tenure.lane_slots s
                                 WHERE s.queue = old.queue AND s.lane = old.lane AND s.job_id = job));
    UPDATE tenure.jobs j
       SET payload = new_payload, checkpoint = NULL,
           scheduled_at = CASE WHEN is_moved THEN due_then ELSE j.scheduled_at END,
           publish_at = CASE WHEN is_moved THEN due_then ELSE j.publish_at END,
           published_at = CASE WHEN is_moved THEN NULL ELSE j.published_at END
     WHERE j.id = job;
    IF waits THEN
        -- Its attempt waited for events or jobs, and begins anew.
        PERFORM tenure.wake_jobs(ARRAY[job]);
    ELSIF is_held THEN
        UPDATE tenure.lane_jobs l
           SET due_at = due_then,
               place = CASE WHEN l.place = 0 THEN 0
                            WHEN due_then <= clock_timestamp() THEN (extract(epoch FROM due_then) * 1000000)::bigint END
         WHERE l.job_id = job AND l.due_at < never;
        IF FOUND THEN
            INSERT INTO tenure.lane_wakes (at, queue, lane, job_id)
            VALUES (greatest(due_then, clock_timestamp()), old.queue, old.lane, job);
        END IF;
    END IF;
END $$;

REVOKE ALL ON FUNCTION tenure.replace_job(uuid, jsonb, timestamptz, interval) FROM PUBLIC;
