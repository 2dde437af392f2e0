-- Settles the edges at these places: each gets the fate of its job, and a copy of the job's output.
--
--   jobs, fates, sizes: as `read_group_ends` returns them   n_of_settled: how many edges were settled
--   followers: the jobs that wait, once for each edge   the other results: as `settle_noted_edges` says
--
-- Part of `settle_noted_edges`, with its rights and settings. It waits for locked edges as long as `lock_timeout` says.
-- An edge that another transaction has changed since it was found may have another place, or a fate that is as good: it
-- is not counted.
CREATE OR REPLACE FUNCTION tenure.settle_edges_at(places tid[], jobs uuid[], fates text[], sizes int[],
    OUT n_of_settled bigint, OUT followers uuid[], OUT failed_followers uuid[], OUT hopeless_followers uuid[],
    OUT steps jsonb)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    WITH settled AS (
        UPDATE tenure.job_edges d
           SET state = fates[width_bucket(d.before, jobs)], ended_at = clock_timestamp(),
               output = CASE WHEN fates[width_bucket(d.before, jobs)] <> 'completed' THEN NULL
                             -- Where there are no outputs, a look for them takes 9 to 13 % of a call.
                             WHEN sizes[width_bucket(d.before, jobs)] > 0
                             THEN coalesce((SELECT h.output FROM tenure.job_history h WHERE h.id = d.before), d.output)
                             ELSE d.output END
         WHERE d.ctid = ANY (places)
           AND (d.state IS NULL OR fates[width_bucket(d.before, jobs)] = 'completed' AND d.state <> 'completed'
                OR fates[width_bucket(d.before, jobs)] IN ('cancelled', 'purged') AND d.state = 'failed')
        RETURNING d.after, d.step, d.state
    )
    SELECT count(*), array_agg(s.after) FILTER (WHERE s.step IS NULL),
           array_agg(DISTINCT s.after) FILTER (WHERE s.step IS NULL AND s.state <> 'completed'),
           array_agg(DISTINCT s.after) FILTER (WHERE s.step IS NULL AND s.state IN ('cancelled', 'purged')),
           jsonb_agg(DISTINCT jsonb_build_array(s.after, s.step)) FILTER (WHERE s.step IS NOT NULL)
      INTO n_of_settled, followers, failed_followers, hopeless_followers, steps
      FROM settled s;
END $$;

REVOKE ALL ON FUNCTION tenure.settle_edges_at(tid[], uuid[], text[], int[]) FROM PUBLIC;
