-- Gives a queue lanes, or changes their settings. From its commit on, every new job of the queue is held. Each lane
-- is looked at under the new settings.
--
--   patience: how long to wait for each lock, for example '300ms'
--
-- The library calls it (src/lanes/sql/put_lanes.sql), and `adopt_jobs` after it.
-- SECURITY DEFINER: the person on call does not own the table.
-- `hold_new_jobs` waits for every transaction that has inserted a job; others wait behind it for `patience` at most.
-- Two calls at once: the lock lets one in at a time. If the answer is lost, a second call puts the same.
CREATE OR REPLACE FUNCTION tenure.put_lanes(of text, running int, rate float8, burst float8, queue_rate float8,
                                            queue_burst float8, turns boolean, ordered boolean,
                                            patience text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    never CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    before tenure.lane_settings;
BEGIN
    PERFORM set_config('lock_timeout', patience, true);
    -- No call of `admit` is under way that has read the old settings. First: `admit` takes these locks in this order.
    LOCK TABLE tenure.lanes IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO before FROM tenure.lane_settings s WHERE s.queue = put_lanes.of FOR NO KEY UPDATE;
    INSERT INTO tenure.lane_settings AS s (queue, running, rate, burst, queue_rate, queue_burst, turns, ordered)
    VALUES (put_lanes.of, put_lanes.running, put_lanes.rate, put_lanes.burst, put_lanes.queue_rate,
            put_lanes.queue_burst, put_lanes.turns, put_lanes.ordered)
        ON CONFLICT (queue) DO UPDATE
       SET running = excluded.running, rate = excluded.rate, burst = excluded.burst, queue_rate = excluded.queue_rate,
           queue_burst = excluded.queue_burst, turns = excluded.turns, ordered = excluded.ordered,
           changed_at = clock_timestamp(), removed_at = NULL;
    IF before.queue IS NULL OR before.removed_at IS NOT NULL OR before.ordered <> put_lanes.ordered THEN
        PERFORM tenure.hold_new_jobs();
    END IF;
    IF before.ordered <> put_lanes.ordered THEN
        PERFORM tenure.place_anew(of, put_lanes.ordered);
        -- An ordered lane keeps the slot of a suspended job: the others hold it, and their next one has the slot.
        WITH suspended AS (
            DELETE FROM tenure.lane_slots sl USING tenure.jobs j
             WHERE sl.queue = of AND NOT put_lanes.ordered AND j.id = sl.job_id AND j.status = 'queued'
               AND (j.publish_at >= '9998-01-01 00:00:00+00') IS TRUE
            RETURNING j.id, sl.lane, j.priority
        ), held AS (
            UPDATE tenure.jobs j SET scheduled_at = never, publish_at = never FROM suspended s WHERE j.id = s.id
        )
        INSERT INTO tenure.lane_jobs (job_id, queue, lane, priority, due_at)
        SELECT s.id, of, s.lane, coalesce(s.priority, 0), never FROM suspended s ON CONFLICT DO NOTHING;
    END IF;
    UPDATE tenure.lanes l SET next_at = clock_timestamp() WHERE l.queue = put_lanes.of;
END $$;

REVOKE ALL ON FUNCTION tenure.put_lanes(text, int, float8, float8, float8, float8, boolean, boolean, text) FROM PUBLIC;
