-- Finds edges that the ends of these jobs change: their places, jobs and followers, in order of job and follower; NULL
-- without any. A fate never replaces a better one, as calls may come in another order than the ends did.
--
--   jobs, fates, sizes, settled_to: as `read_group_ends` returns them
--   has_more: there may be more. One call finds at most 5,000 edges, and no more than copy 16 MiB of outputs, but one.
--
-- Part of `settle_noted_edges`, with its rights and settings. It locks nothing: another transaction may change an edge
-- before `settle_edges_at` does.
CREATE OR REPLACE FUNCTION tenure.find_open_edges(jobs uuid[], fates text[], sizes int[], settled_to uuid[],
    OUT places tid[], OUT befores uuid[], OUT afters uuid[], OUT has_more boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    edges_at_once CONSTANT int := 5000;
    bytes_at_once CONSTANT int := 16 * 1024 * 1024;
BEGIN
    SELECT array_agg(f.place) FILTER (WHERE f.bytes_before < bytes_at_once),
           array_agg(f.before) FILTER (WHERE f.bytes_before < bytes_at_once),
           array_agg(f.after) FILTER (WHERE f.bytes_before < bytes_at_once),
           count(*) = edges_at_once OR coalesce(bool_or(f.bytes_before >= bytes_at_once), false)
      INTO places, befores, afters, has_more
      FROM (SELECT d.before, d.after, d.place,
                   sum(d.size) OVER (ORDER BY d.before, d.after ROWS UNBOUNDED PRECEDING) - d.size AS bytes_before
              FROM (SELECT d.before, d.after, d.place, e.size
                      FROM unnest(jobs, fates, sizes, settled_to) AS e(job, fate, size, settled_to)
                     CROSS JOIN LATERAL (
                           SELECT d.before, d.after, d.ctid AS place
                             FROM tenure.job_edges d
                            WHERE d.before = e.job AND d.after > e.settled_to
                              AND (d.state IS NULL OR e.fate = 'completed' AND d.state <> 'completed'
                                   OR e.fate IN ('cancelled', 'purged') AND d.state = 'failed')
                            ORDER BY d.after LIMIT edges_at_once) d
                     LIMIT edges_at_once) d
             ORDER BY d.before, d.after) f;
END $$;

REVOKE ALL ON FUNCTION tenure.find_open_edges(uuid[], text[], int[], uuid[]) FROM PUBLIC;
