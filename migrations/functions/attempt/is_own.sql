-- is_own: whether the current transaction wrote a row that it sees, given the row's xmin.
--
-- Called by tenure.once_store, with the caller's rights; it reads no table, and so PUBLIC may execute it. A
-- subtransaction has an id of its own, later than the transaction's: so the id alone decides nothing, and its status is
-- asked. A row of any other transaction is visible only once that has committed.
CREATE OR REPLACE FUNCTION tenure.is_own(written_by xid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ours  CONSTANT bigint := pg_current_xact_id_if_assigned()::text::bigint;
    later CONSTANT bigint := (written_by::text::bigint - ours) & 4294967295;
BEGIN
    -- Of other transactions it sees only rows of committed ones. Half of all ids are earlier than this one.
    RETURN coalesce(later < 2147483648 AND pg_xact_status((ours + later)::text::xid8) = 'in progress', false);
END $$;

GRANT EXECUTE ON FUNCTION tenure.is_own(xid) TO PUBLIC;
