-- Has two triggers hold the new jobs of all queues with lanes, where each queue had one of its own: a plain insert paid
-- for each of them.
ALTER TABLE tenure.lane_settings
    ADD COLUMN holds boolean NOT NULL DEFAULT true;         -- the triggers hold the new jobs of the queue
DO $$
DECLARE
    old name;
BEGIN
    FOR old IN SELECT t.tgname FROM pg_trigger t
                WHERE t.tgrelid = 'tenure.jobs'::regclass AND t.tgfoid = 'tenure.hold_in_lane()'::regprocedure LOOP
        EXECUTE format('DROP TRIGGER %I ON tenure.jobs', old);
    END LOOP;
    -- It waits for those that insert jobs.
    IF EXISTS (SELECT FROM tenure.lane_settings) THEN
        PERFORM tenure.hold_new_jobs();
    END IF;
END $$;
