-- Locks the lanes that a call of `admit` names, creates those that are new, and returns those that the call now has.
-- NULL: another call has the queue's tokens.
--
--   of: the queue   names: the lanes, sorted   is_patient: whether to wait for rows that another call has locked, or to
--   pass them over
--
-- Called by `admit` alone, with its rights, its search_path and its settings for plans.
-- New lanes come first: a call that waits for another one's row must not hold any. A new lane that an open transaction
-- brings, too, is passed over if the call is not patient. A row that is swept meanwhile has no slot; its wakes stay.
-- The calls for a queue with a rate of its own go one at a time: they share the queue's tokens.
CREATE OR REPLACE FUNCTION tenure.lock_named_lanes(of text, names text[], is_patient boolean) RETURNS text[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    new_lanes text[];
BEGIN
    new_lanes := ARRAY(SELECT n FROM unnest(names) AS n
                        WHERE NOT EXISTS (SELECT FROM tenure.lanes l WHERE l.queue = of AND l.lane = n)
                        ORDER BY n);
    IF is_patient THEN
        INSERT INTO tenure.lanes (queue, lane) SELECT of, n FROM unnest(new_lanes) AS n ON CONFLICT DO NOTHING;
    ELSIF new_lanes <> '{}' THEN
        PERFORM tenure.create_free_lanes(of, new_lanes);
    END IF;
    -- Settings are read from here on, not earlier: `put_lanes` changes them while no call has touched tenure.lanes.
    IF EXISTS (SELECT FROM tenure.lane_settings s WHERE s.queue = of AND s.queue_rate IS NOT NULL) THEN
        IF is_patient THEN
            PERFORM FROM tenure.lane_settings s WHERE s.queue = of FOR NO KEY UPDATE;
        ELSE
            PERFORM FROM tenure.lane_settings s WHERE s.queue = of FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                RETURN NULL;
            END IF;
        END IF;
    END IF;
    IF is_patient THEN
        RETURN ARRAY(SELECT l.lane FROM tenure.lanes l WHERE l.queue = of AND l.lane = ANY (names)
                      ORDER BY l.lane FOR NO KEY UPDATE);
    END IF;
    RETURN ARRAY(SELECT l.lane FROM tenure.lanes l WHERE l.queue = of AND l.lane = ANY (names)
                  ORDER BY l.lane FOR NO KEY UPDATE SKIP LOCKED);
END $$;

REVOKE ALL ON FUNCTION tenure.lock_named_lanes(text, text[], boolean) FROM PUBLIC;
