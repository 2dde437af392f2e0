-- Locks those of these edges that no other transaction has locked, and returns their places, and the jobs of the
-- others. An edge that has another place by now is one of the others.
--
--   befores: the job of each edge
--
-- Part of `settle_noted_edges`, with its rights and settings, where a wait for all of these edges has ended at
-- `lock_timeout`.
CREATE OR REPLACE FUNCTION tenure.lock_edges(INOUT places tid[], befores uuid[], OUT locked_jobs uuid[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    free_places CONSTANT tid[] := ARRAY(
        SELECT d.ctid FROM tenure.job_edges d WHERE d.ctid = ANY (places) FOR NO KEY UPDATE SKIP LOCKED);
BEGIN
    SELECT array_agg(DISTINCT e.before) INTO locked_jobs
      FROM unnest(places, befores) AS e(place, before)
     WHERE (e.place IN (SELECT unnest(free_places))) IS NOT TRUE;
    places := free_places;
END $$;

REVOKE ALL ON FUNCTION tenure.lock_edges(tid[], uuid[]) FROM PUBLIC;
