-- Draws edges of these followers for `mend_groups` to look at: their places. All of a follower that has few.
--
-- Called by `mend_groups` alone, with its rights, its search_path and its settings for plans. It locks nothing.
CREATE OR REPLACE FUNCTION tenure.edges_to_mend(followers uuid[]) RETURNS tid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    edges_of_each int;
BEGIN
    -- Numbers may lie far apart, and a draw among them finds few of the first ones: now and then a look sees all.
    edges_of_each := CASE WHEN random() < 0.02 THEN 1000000
                          ELSE greatest(25, 5000 / greatest(1, cardinality(followers))) END;
    RETURN ARRAY(
        WITH place AS MATERIALIZED (
            -- Drawn here, once: in the next part it would be drawn for each edge.
            SELECT f.id, r.first,
                   CASE WHEN (SELECT count(*) FROM (SELECT FROM tenure.job_edges d
                                                     WHERE d.after = f.id LIMIT edges_of_each + 1) d) > edges_of_each
                        THEN random() * (r.last - r.first) ELSE 0 END AS skips
              FROM unnest(followers) AS f(id)
             CROSS JOIN LATERAL (SELECT min(d.n) AS first, max(d.n) AS last FROM tenure.job_edges d
                                  WHERE d.after = f.id) r
        )
        SELECT e.place
          FROM place p
         CROSS JOIN LATERAL (
               SELECT d.ctid AS place FROM tenure.job_edges d
                WHERE d.after = p.id AND d.n >= p.first + greatest(0, floor(p.skips)::bigint - edges_of_each / 2)
                ORDER BY d.n LIMIT edges_of_each) e);
END $$;

REVOKE ALL ON FUNCTION tenure.edges_to_mend(uuid[]) FROM PUBLIC;
