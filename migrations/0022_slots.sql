-- Claims of a limited queue no longer take turns: each takes free slots of its own. A program of an earlier release counts
-- the free slots under a lock that the others do not take. When it then takes one that is no longer free, for a job that it
-- has just claimed, it is refused, and its jobs are delivered again. A change of the limit, which moves running jobs from
-- slot to slot, is not.
CREATE FUNCTION tenure.keep_slot() RETURNS trigger
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
CREATE TRIGGER keep_slot BEFORE UPDATE ON tenure.queue_slots FOR EACH ROW
    WHEN (NEW.job_id IS NOT NULL AND OLD.job_id IS DISTINCT FROM NEW.job_id)
    EXECUTE FUNCTION tenure.keep_slot();
