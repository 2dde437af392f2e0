-- Holds a new job of a queue with lanes: gives it a row in its lane instead of a message, and wakes the lane. A job
-- that is due at no time (it follows others) has no place in its lane until it is released.
--
-- A queue may take no job that names no lane (`require_lanes`): such a one raises TN009. A redriven job comes back.
-- The triggers of such queues call it, which `hold_new_jobs` creates; the argument says whether the lanes are ordered.
-- SECURITY DEFINER: a producer may not write to lanes.
-- One wake for all due jobs that a transaction adds to a lane: `tenure.woken` keeps the last lanes, some hundred, until
-- the transaction ends.
CREATE OR REPLACE FUNCTION tenure.hold_in_lane() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    never      CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    is_ordered CONSTANT boolean := TG_ARGV[0] = 'ordered';
    due        CONSTANT timestamptz := NEW.scheduled_at;
    is_due     CONSTANT boolean := due <= clock_timestamp();
    place      CONSTANT bigint := CASE WHEN due >= never THEN NULL
                                       WHEN is_ordered THEN 0
                                       WHEN is_due THEN (extract(epoch FROM due) * 1000000)::bigint END;
    woken      CONSTANT text := coalesce(current_setting('tenure.woken', true), '');
    this_lane  text;
BEGIN
    IF NEW.lane IS NULL AND NEW.clear_reason IS NULL
       AND EXISTS (SELECT FROM tenure.lane_settings s
                    WHERE s.queue = NEW.queue AND s.required AND s.removed_at IS NULL) THEN
        RAISE EXCEPTION 'queue % takes no job without a lane', to_json(NEW.queue)
            USING ERRCODE = 'TN009', DETAIL = 'Nothing was enqueued.',
                  HINT = 'Name the lane, or let the queue take such jobs: tenure queues lanes.';
    END IF;
    NEW.lane := coalesce(NEW.lane, '');
    NEW.priority := coalesce(NEW.priority, 0);
    INSERT INTO tenure.lane_jobs (job_id, queue, lane, priority, place, due_at)
    VALUES (NEW.id, NEW.queue, NEW.lane, CASE WHEN is_ordered THEN 0 ELSE NEW.priority END, place, due);
    this_lane := format(E'\n%s %s\n', NEW.queue, NEW.lane);
    IF due < never AND (NOT is_due OR strpos(woken, this_lane) = 0) THEN
        INSERT INTO tenure.lane_wakes (at, queue, lane, job_id)
        -- None in the past, however long ago the job was due: looks at wakes begin a minute ago.
        VALUES (greatest(due, clock_timestamp()), NEW.queue, NEW.lane, CASE WHEN place IS NULL THEN NEW.id END);
        IF is_due THEN
            PERFORM set_config('tenure.woken', right(woken, 4000) || this_lane, true);
        END IF;
    END IF;
    NEW.dispatch := CASE WHEN NEW.published_at IS NULL THEN NEW.dispatch ELSE 0 END;
    NEW.scheduled_at := never;
    NEW.publish_at := never;
    NEW.published_at := NULL;
    RETURN NEW;
END $$;

REVOKE ALL ON FUNCTION tenure.hold_in_lane() FROM PUBLIC;
