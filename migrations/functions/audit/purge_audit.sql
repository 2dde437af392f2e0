-- purge_audit: deletes acts older than `keep`, the oldest first, at most `step`. Returns how many.
--
-- Called by purge_audit.sql, of a worker's sweep.
-- SECURITY DEFINER: no role may change or delete an act. An act stays for 30 days, also if `keep` is shorter, so that a
-- worker's password does not hide what was done with it.
-- Two at once delete each row once.
CREATE OR REPLACE FUNCTION tenure.purge_audit(keep interval, step int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    act_count bigint;
BEGIN
    DELETE FROM tenure.audit
     WHERE id IN (SELECT id FROM tenure.audit
                   WHERE at < statement_timestamp() - greatest(tenure.check_age(keep), interval '30 days')
                   ORDER BY at LIMIT step);
    GET DIAGNOSTICS act_count = ROW_COUNT;
    RETURN act_count;
END $$;

REVOKE ALL ON FUNCTION tenure.purge_audit(interval, int) FROM PUBLIC;
