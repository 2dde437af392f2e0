-- Has a queue with lanes take no new job that names none, or take such jobs again.
--
-- put_lanes.sql (the library) calls it after `put_lanes`, in the same transaction. A second call changes nothing.
-- SECURITY DEFINER: the person on call may write no settings but through these functions.
-- A transaction that has enqueued before its commit keeps its jobs.
CREATE OR REPLACE FUNCTION tenure.require_lanes(of text, required boolean) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
UPDATE tenure.lane_settings s SET required = require_lanes.required
 WHERE s.queue = require_lanes.of AND s.required <> require_lanes.required
$$;

REVOKE ALL ON FUNCTION tenure.require_lanes(text, boolean) FROM PUBLIC;
