-- Checks that `jobs` new jobs fit below the limit of a queue (`tenure queues limit`), and raises TN004 if not.
--
--   of_queue: the queue   most: its limit   jobs: how many jobs come
--
-- A count lets a part of the room through for a second, so that a transaction that enqueues one job after the other
-- does not count a long queue each time; `tenure.room` keeps it until the transaction ends. Two transactions at once
-- may both see the last room, and pass the limit.
-- Called by `create_jobs` alone, with its rights, its search_path and its settings for plans. PUBLIC may execute it:
-- it has no right but the caller's.
CREATE OR REPLACE FUNCTION tenure.take_room(of_queue text, most bigint, jobs bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    rooms   CONSTANT jsonb := coalesce(nullif(current_setting('tenure.room', true), '')::jsonb, '{}');
    room    bigint := (rooms -> of_queue ->> 0)::bigint;
    waiting bigint;
BEGIN
    IF room >= jobs AND (rooms -> of_queue ->> 1)::float8 > extract(epoch FROM clock_timestamp()) THEN
        room := room - jobs;
    ELSE
        -- As count_queued.sql.
        SELECT (SELECT count(*) FROM (
                   SELECT FROM tenure.jobs j
                    WHERE j.published_at IS NOT NULL AND j.status = 'queued'
                      AND (j.queue, j.published_at) >= (of_queue, '-infinity'::timestamptz)
                      AND (j.queue, j.published_at) <= (of_queue, 'infinity'::timestamptz)
                    ORDER BY j.queue, j.published_at LIMIT most + 1) p)
             + (SELECT count(*) FROM (
                   SELECT FROM tenure.jobs j
                    WHERE j.publish_at IS NOT NULL AND j.status = 'queued'
                      AND (j.queue, j.publish_at) >= (of_queue, '-infinity'::timestamptz)
                      AND (j.queue, j.publish_at) <= (of_queue, 'infinity'::timestamptz)
                    ORDER BY j.queue, j.publish_at LIMIT most + 1) u)
          INTO waiting;
        room := most - waiting;
        IF room < jobs THEN
            RAISE EXCEPTION 'queue % is full: % jobs wait, and % more would exceed its limit of %',
                            to_json(of_queue), waiting, jobs, most
                USING ERRCODE = 'TN004', DETAIL = 'Nothing was enqueued.',
                      HINT = CASE WHEN jobs > most
                                  THEN 'Enqueue fewer at once, or raise its limit with `tenure queues limit`.'
                                  ELSE 'Try again later, or raise its limit with `tenure queues limit`.' END;
        END IF;
        room := greatest(jobs, room / 10) - jobs;
    END IF;
    PERFORM set_config('tenure.room', (rooms || jsonb_build_object(of_queue,
                jsonb_build_array(room, extract(epoch FROM clock_timestamp()) + 1)))::text, true);
END $$;

GRANT EXECUTE ON FUNCTION tenure.take_room(text, bigint, bigint) TO PUBLIC;
