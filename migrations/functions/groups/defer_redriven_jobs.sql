-- Notes failed jobs anew whose dead letters another transaction has locked, and returns them. A redrive holds the dead
-- letter until it commits; by then the job is live again, or it has failed after all. Of a dead letter that is locked
-- here the redrive will see what this call writes.
--
-- Part of `settle_noted_edges`, with its rights and settings. It waits for no lock.
CREATE OR REPLACE FUNCTION tenure.defer_redriven_jobs(notes bigint[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    failed_jobs CONSTANT uuid[] := ARRAY(
        SELECT g.job_id FROM tenure.group_ends g WHERE g.id = ANY (notes) AND g.ended_as = 'failed');
    locked_here   uuid[];
    deferred_jobs uuid[];
BEGIN
    SELECT array_agg(d.id) INTO locked_here
      FROM (SELECT d.id FROM tenure.dead_letter_jobs d WHERE d.id = ANY (failed_jobs) ORDER BY d.id
               FOR SHARE SKIP LOCKED) d;
    SELECT array_agg(d.id) INTO deferred_jobs
      FROM tenure.dead_letter_jobs d
     WHERE d.id = ANY (failed_jobs) AND (d.id IN (SELECT unnest(locked_here))) IS NOT TRUE;
    INSERT INTO tenure.group_ends (job_id, ended_as, settled_to)
    SELECT g.job_id, g.ended_as, g.settled_to
      FROM tenure.group_ends g
     WHERE g.id = ANY (notes) AND g.ended_as <> 'settled' AND g.job_id = ANY (deferred_jobs) ORDER BY g.id;
    RETURN deferred_jobs;
END $$;

REVOKE ALL ON FUNCTION tenure.defer_redriven_jobs(bigint[]) FROM PUBLIC;
