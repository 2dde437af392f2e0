-- Returns the ends among these notes that count, in arrays that are sorted by job. Of two ends of one job a completion
-- counts, or else the later one. A job that is live again has not ended.
--
--   fates: how each has ended   sizes: the bytes of its output, as stored; 0: no output
--   settled_to: the last follower whose edge an earlier call has settled
--
-- Part of `settle_noted_edges`, with its rights and settings. It reads notes that the call has locked.
CREATE OR REPLACE FUNCTION tenure.read_group_ends(notes bigint[], deferred_jobs uuid[],
    OUT jobs uuid[], OUT fates text[], OUT sizes int[], OUT settled_to uuid[])
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    SELECT array_agg(e.job_id ORDER BY e.job_id), array_agg(e.ended_as ORDER BY e.job_id),
           array_agg(CASE WHEN e.ended_as <> 'completed' THEN 0
                          ELSE coalesce((SELECT pg_column_size(h.output)
                                           FROM tenure.job_history h WHERE h.id = e.job_id), 0) END ORDER BY e.job_id),
           array_agg(coalesce(e.settled_to, '00000000-0000-0000-0000-000000000000') ORDER BY e.job_id)
      INTO jobs, fates, sizes, settled_to
      FROM (SELECT DISTINCT ON (g.job_id) g.job_id, g.ended_as, g.settled_to
              FROM tenure.group_ends g
             WHERE g.id = ANY (notes) AND g.ended_as <> 'settled'
               AND (g.job_id IN (SELECT unnest(deferred_jobs))) IS NOT TRUE
             ORDER BY g.job_id, (g.ended_as = 'completed') DESC, g.id DESC) e
     -- Not EXISTS, which a plan may answer by a look at all jobs.
     WHERE e.ended_as = 'completed' OR (SELECT true FROM tenure.jobs j WHERE j.id = e.job_id) IS NULL;
END $$;

REVOKE ALL ON FUNCTION tenure.read_group_ends(bigint[], uuid[]) FROM PUBLIC;
