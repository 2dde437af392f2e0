-- Lets new jobs of a group wait for others: each of `afters` for the job of `befores` at its place. In this order a
-- follower sees the outputs.
--
-- src/groups/sql/link_jobs.sql calls it in the transaction that creates the jobs. An edge that is there already stays.
-- SECURITY DEFINER: a producer lets no job wait that is there already: see `check_new_jobs`. Each of `afters` is a
-- follower, with which `sweep_groups` forgets the edges of a job that never came.
CREATE OR REPLACE FUNCTION tenure.link_jobs(befores uuid[], afters uuid[], of_group uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM tenure.check_new_jobs(ARRAY(SELECT DISTINCT u.id FROM unnest(afters) AS u(id)), of_group);
    IF EXISTS (SELECT FROM unnest(afters) AS u(id)
                WHERE NOT EXISTS (SELECT FROM tenure.followers f WHERE f.job_id = u.id)) THEN
        RAISE EXCEPTION 'a job that is to wait for others is no follower' USING ERRCODE = 'TN003',
              HINT = 'Call add_followers first.';
    END IF;
    INSERT INTO tenure.job_edges (before, after, group_id)
    SELECT u.before, u.after, of_group
      FROM unnest(befores, afters) WITH ORDINALITY AS u(before, after, n)
     WHERE u.before <> u.after
     ORDER BY u.n
        ON CONFLICT (before, after) DO NOTHING;
END $$;

REVOKE ALL ON FUNCTION tenure.link_jobs(uuid[], uuid[], uuid) FROM PUBLIC;
