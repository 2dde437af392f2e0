-- Tells a job of an event, as a person: as `signal`, and notes it in the audit.
--
--   via, actor: by what, and the name, as the program says
--
-- src/groups/sql/signal_by.sql calls it. A program's own signals are no acts: they are the course of its jobs.
-- SECURITY DEFINER: a producer may note no act but its own signals. The role and the address are the connection's.
-- A second call signals nothing, and notes nothing.
CREATE OR REPLACE FUNCTION tenure.signal_by(job uuid, name text, payload jsonb, via text, actor text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    answer CONSTANT text := tenure.signal(job, name, payload);
BEGIN
    IF answer = 'signalled' THEN
        INSERT INTO tenure.audit (via, actor, act, queue, subject, jobs, details)
        VALUES (via, actor, 'signal', (SELECT j.queue FROM tenure.jobs j WHERE j.id = job), job::text, 1,
                jsonb_build_object('event', name));
    END IF;
    RETURN answer;
END $$;

REVOKE ALL ON FUNCTION tenure.signal_by(uuid, text, jsonb, text, text) FROM PUBLIC;
