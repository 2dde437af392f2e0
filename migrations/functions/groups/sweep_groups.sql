-- Forgets followers that are gone from all tables, and their edges, which kept the outputs until then. Looks at `most`
-- followers after this one, in order of id. Returns the last one, or NULL after the end.
--
-- src/groups/sql/sweep_groups.sql calls it: the worker with the turn, from the start again after the end.
-- A lost answer costs a second look.
-- SECURITY DEFINER: a worker may delete neither followers nor edges.
-- A follower is created in one transaction with its job, and a job that is in no table does not come back: two sweeps
-- at once find the same ones gone, and the second deletes nothing.
CREATE OR REPLACE FUNCTION tenure.sweep_groups(after_follower uuid, most int) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    followers      uuid[];
    gone_followers uuid[];
BEGIN
    SELECT array_agg(f.job_id ORDER BY f.job_id) INTO followers
      FROM (SELECT f.job_id FROM tenure.followers f WHERE f.job_id > after_follower ORDER BY f.job_id LIMIT most) f;
    SELECT array_agg(f.job_id) INTO gone_followers
      FROM unnest(followers) AS f(job_id)
     WHERE NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = f.job_id)
       AND NOT EXISTS (SELECT FROM tenure.job_history h WHERE h.id = f.job_id)
       AND NOT EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = f.job_id);
    DELETE FROM tenure.followers f WHERE f.job_id = ANY (gone_followers);
    DELETE FROM tenure.job_edges d WHERE d.after = ANY (gone_followers);
    RETURN followers[most];
END $$;

REVOKE ALL ON FUNCTION tenure.sweep_groups(uuid, int) FROM PUBLIC;
