-- Has the oldest note that is not at rest be passed over for ten seconds, and returns its job and that job's queue:
-- Postgres has refused to write what it asks for, and the others are not to wait for it.
--
-- src/groups/sql/rest_group_note.sql calls it, after `release_followers(1)` was refused.
-- SECURITY DEFINER: a worker may not write notes. Two calls at once, or another look in between: a note rests that has
-- done nothing, and goes on ten seconds later. A lost answer costs no more.
CREATE OR REPLACE FUNCTION tenure.rest_group_note() RETURNS TABLE (job_id uuid, queue text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
UPDATE tenure.group_ends g SET rests_until = clock_timestamp() + interval '10 seconds'
 WHERE g.id = (SELECT o.id FROM tenure.group_ends o
                WHERE o.id >= (SELECT tenure.first_note()) AND (o.rests_until > clock_timestamp()) IS NOT TRUE
                ORDER BY o.id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
RETURNING g.job_id, coalesce((SELECT j.queue FROM tenure.jobs j WHERE j.id = g.job_id),
                             (SELECT h.queue FROM tenure.job_history h WHERE h.id = g.job_id),
                             (SELECT d.queue FROM tenure.dead_letter_jobs d WHERE d.id = g.job_id))
$$;

REVOKE ALL ON FUNCTION tenure.rest_group_note() FROM PUBLIC;
