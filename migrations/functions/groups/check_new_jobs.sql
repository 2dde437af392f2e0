-- Raises TN003 if one of these jobs is not new in this group: it belongs to another group or to none, or it has ended.
--
-- Part of `link_jobs` and `add_followers`, which run with the rights of the schema's owner. By it a producer makes no
-- job wait that is there already, unless that one was created as a part of this group: no other producer can know the
-- group's id.
-- It locks nothing: the jobs that it lets pass are mostly new in this transaction, and no other one has seen them.
CREATE OR REPLACE FUNCTION tenure.check_new_jobs(jobs uuid[], of_group uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    other uuid;
BEGIN
    SELECT u.id INTO other
      FROM unnest(jobs) AS u(id)
     WHERE EXISTS (SELECT FROM tenure.jobs j WHERE j.id = u.id AND j.group_id IS DISTINCT FROM of_group)
        OR EXISTS (SELECT FROM tenure.followers f WHERE f.job_id = u.id AND f.group_id <> of_group)
        OR EXISTS (SELECT FROM tenure.job_history h WHERE h.id = u.id)
        OR EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = u.id)
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'job % is no new job of this group', other USING ERRCODE = 'TN003';
    END IF;
    PERFORM tenure.check_unseen_jobs(jobs);
END $$;

REVOKE ALL ON FUNCTION tenure.check_new_jobs(uuid[], uuid) FROM PUBLIC;
