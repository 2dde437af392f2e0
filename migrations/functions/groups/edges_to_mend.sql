-- Returns the places of those edges of these followers that may have lost an end: open ones, and failed ones. Of each
-- follower it goes through 5,000 edges at most, from where the last call ended, and from the first one after the last.
--
-- Called by `mend_groups` alone, with its rights, its search_path and its settings for plans. It waits for no lock: a
-- follower that is locked remembers nothing, and the next call sees the same edges. So do two calls at once.
-- A cursor, not a draw: the numbers of a follower's edges may lie far apart, and a draw among them finds some of them
-- hardly ever.
CREATE OR REPLACE FUNCTION tenure.edges_to_mend(followers uuid[]) RETURNS tid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    edges_of_each CONSTANT int := 5000;
    places        tid[];
BEGIN
    WITH edge AS MATERIALIZED (
        SELECT f.job_id, f.mended_to, e.n, e.place, e.may_be_lost
          FROM tenure.followers f
          LEFT JOIN LATERAL (
               SELECT d.n, d.ctid AS place, d.state IS NULL OR d.state = 'failed' AS may_be_lost
                 FROM tenure.job_edges d
                WHERE d.after = f.job_id AND d.n > f.mended_to
                ORDER BY d.n LIMIT edges_of_each) e ON true
         WHERE f.job_id = ANY (followers)
    ), seen AS (
        SELECT e.job_id, e.mended_to, CASE WHEN count(e.n) = edges_of_each THEN max(e.n) ELSE 0 END AS next_from
          FROM edge e GROUP BY e.job_id, e.mended_to
    ), moved AS (
        -- Nothing is written for a follower of few.
        UPDATE tenure.followers f SET mended_to = s.next_from
          FROM seen s
         WHERE f.job_id = s.job_id AND s.next_from <> s.mended_to
           AND f.job_id IN (SELECT o.job_id FROM tenure.followers o
                             WHERE o.job_id IN (SELECT m.job_id FROM seen m WHERE m.next_from <> m.mended_to)
                             ORDER BY o.job_id FOR NO KEY UPDATE SKIP LOCKED)
    )
    SELECT array_agg(e.place) FILTER (WHERE e.may_be_lost) INTO places FROM edge e;
    RETURN places;
END $$;

REVOKE ALL ON FUNCTION tenure.edges_to_mend(uuid[]) FROM PUBLIC;
