-- Finds lanes with slots of jobs that have ended, or are held, at most `most`: in 50 pages of the table, some 5,000
-- slots, from a place that the clock moves on by 25 pages a second.
--
-- Called by `tend_lanes` alone, with its rights, its search_path and its settings for plans. It locks nothing.
-- A slot stays where it is until it is freed, and so looks that are less than two seconds apart leave none out: of
-- 60,000 slots they have seen all after 22 s. Rarer ones come by at other times. A table of up to 50 pages is seen
-- whole.
-- By place, not by key: a look reads as much whether there are many slots, or the rows of many that no vacuum can
-- remove; and no row remembers where the last look ended, whose versions no vacuum could remove either.
CREATE OR REPLACE FUNCTION tenure.lost_slots(moment timestamptz, most int) RETURNS TABLE (queue text, lane text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    pages_at_once CONSTANT bigint := 50;
    pages         CONSTANT bigint := pg_relation_size('tenure.lane_slots') / current_setting('block_size')::int;
    -- From before the first page to the last one, so that each page is as long in sight as the others.
    first_page    CONSTANT bigint := CASE WHEN pages <= pages_at_once THEN 0
                                          ELSE floor(extract(epoch FROM moment) * pages_at_once / 2)::bigint
                                               % (pages + pages_at_once) - pages_at_once END;
BEGIN
    RETURN QUERY
    SELECT DISTINCT sl.queue, sl.lane FROM tenure.lane_slots sl
     WHERE sl.ctid >= format('(%s,0)', greatest(first_page, 0))::tid
       AND sl.ctid < format('(%s,0)', first_page + pages_at_once)::tid
       AND (SELECT true FROM tenure.jobs j
             WHERE j.id = sl.job_id AND j.publish_at IS DISTINCT FROM '9999-01-01 00:00:00+00') IS NULL
     LIMIT most;
END $$;

REVOKE ALL ON FUNCTION tenure.lost_slots(timestamptz, int) FROM PUBLIC;
