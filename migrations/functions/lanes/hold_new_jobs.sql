-- Has the triggers hold the new jobs of all queues that have lanes, and of no other: one trigger for those whose lanes
-- are ordered, and one for the rest. Their lists stand in the triggers, so that an insert into another queue runs no
-- function, and a transaction that began before has its jobs held, too. Each statement reads such a list, 0.2 us a
-- queue: a longer one stands in a function, whose text a session reads once, and which costs 15 us
-- (scripts/measure_sql inserts).
--
-- `put_lanes` and `forget_lanes` call it, with their rights, and migration 32. A trigger without a queue stays, with an
-- empty list: to drop it would wait for readers of the table, too.
-- The lock waits for every transaction that has inserted a job, and lets one call in at a time. The lists are read
-- after it: a transaction with a snapshot of before is refused.
CREATE OR REPLACE FUNCTION tenure.hold_new_jobs() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_lanes  RECORD;
    is_listed text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'lanes change at READ COMMITTED, and not at %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'feature_not_supported';
    END IF;
    LOCK TABLE tenure.jobs IN SHARE ROW EXCLUSIVE MODE;
    UPDATE tenure.lane_settings s SET holds = s.removed_at IS NULL WHERE s.holds <> (s.removed_at IS NULL);
    FOR of_lanes IN
        SELECT k.name, k.word, coalesce(array_agg(s.queue ORDER BY s.queue) FILTER (WHERE s.holds), '{}') AS queues
          FROM (VALUES ('lanes', '', false), ('lanes_ordered', 'ordered', true)) AS k(name, word, ordered)
          LEFT JOIN tenure.lane_settings s ON s.ordered = k.ordered
         GROUP BY k.name, k.word LOOP
        IF of_lanes.queues <> '{}' OR EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = 'tenure.jobs'::regclass
                                                 AND t.tgname = of_lanes.name) THEN
            is_listed := format('NEW.queue = ANY (%L::text[])', of_lanes.queues);
            IF cardinality(of_lanes.queues) > 64 THEN
                -- PL/pgSQL hashes a list.
                EXECUTE format('CREATE OR REPLACE FUNCTION tenure.has_%s(queue text) RETURNS boolean
                                  LANGUAGE plpgsql STABLE PARALLEL SAFE AS %L',
                               of_lanes.name,
                               format('BEGIN RETURN queue OPERATOR(pg_catalog.=) ANY (%L::text[]); END',
                                      of_lanes.queues));
                -- It runs with the rights of the producer.
                EXECUTE format('GRANT EXECUTE ON FUNCTION tenure.has_%s(text) TO PUBLIC', of_lanes.name);
                is_listed := format('tenure.has_%s(NEW.queue)', of_lanes.name);
            END IF;
            EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE INSERT ON tenure.jobs FOR EACH ROW
                              WHEN (%s) EXECUTE FUNCTION tenure.hold_in_lane(%L)',
                           of_lanes.name, is_listed, of_lanes.word);
        END IF;
    END LOOP;
END $$;

REVOKE ALL ON FUNCTION tenure.hold_new_jobs() FROM PUBLIC;
