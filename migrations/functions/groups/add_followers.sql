-- Notes new jobs of a group that wait for others, and what each does when a job before it has failed.
--
--   on_failure: for each job 'cancel', 'run' or 'hold'
--
-- src/groups/sql/add_followers.sql calls it in the transaction that creates the jobs. A second call changes nothing.
-- SECURITY DEFINER: a producer writes no follower of a job that is there already: see `check_new_jobs`.
CREATE OR REPLACE FUNCTION tenure.add_followers(ids uuid[], on_failure text[], of_group uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM tenure.check_new_jobs(ids, of_group);
    INSERT INTO tenure.followers (job_id, group_id, on_failure)
    SELECT u.job_id, of_group, u.does FROM unnest(ids, on_failure) AS u(job_id, does)
        ON CONFLICT (job_id) DO NOTHING;
END $$;

REVOKE ALL ON FUNCTION tenure.add_followers(uuid[], text[], uuid) FROM PUBLIC;
