-- Creates new lanes, but for those that an open transaction brings, too: it waits for two of them at most, 50 ms each.
--
-- Called by `lock_named_lanes` alone, with its rights and its search_path. What it passes over keeps its wakes.
-- In no order that another call has, too: none waits for as long as a deadlock takes to be found.
CREATE OR REPLACE FUNCTION tenure.create_free_lanes(of text, new_lanes text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET lock_timeout = '50ms' AS $$
DECLARE
    new_lane text;
    waits    int := 0;
BEGIN
    BEGIN
        INSERT INTO tenure.lanes (queue, lane) SELECT of, n FROM unnest(new_lanes) AS n ON CONFLICT DO NOTHING;
        RETURN;
    EXCEPTION WHEN lock_not_available THEN
        NULL;
    END;
    FOR new_lane IN SELECT n FROM unnest(new_lanes) AS n ORDER BY random() LIMIT 50 LOOP
        BEGIN
            INSERT INTO tenure.lanes (queue, lane) VALUES (of, new_lane) ON CONFLICT DO NOTHING;
        EXCEPTION WHEN lock_not_available THEN
            waits := waits + 1;
        END;
        EXIT WHEN waits = 2;
    END LOOP;
END $$;

REVOKE ALL ON FUNCTION tenure.create_free_lanes(text, text[]) FROM PUBLIC;
