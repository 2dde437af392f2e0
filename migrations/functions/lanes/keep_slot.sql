-- Refuses a running job's slot in a limited queue to another job that has just been claimed.
--
-- The trigger of queue_slots; it runs with the rights of the claim. A claim takes free slots of its own. One of an
-- earlier release counts the free slots under a lock that the others do not take: when it then takes one that is no
-- longer free, it is refused, and its jobs are delivered again. A change of the limit, which moves running jobs from
-- slot to slot, is not.
CREATE OR REPLACE FUNCTION tenure.keep_slot() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM tenure.jobs j
                WHERE j.id = OLD.job_id AND j.fencing_token = OLD.fencing_token AND j.status = 'processing')
       AND EXISTS (SELECT FROM tenure.jobs j WHERE j.id = NEW.job_id AND j.xmin = pg_current_xact_id()::xid) THEN
        RAISE EXCEPTION 'slot % of queue % was taken meanwhile; try again', OLD.slot, OLD.queue
              USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN NEW;
END $$;

GRANT EXECUTE ON FUNCTION tenure.keep_slot() TO PUBLIC;
