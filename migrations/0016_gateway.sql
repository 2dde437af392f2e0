-- Gateway: workers that speak the worker protocol over NATS.

-- The key with which gateways sign the receipts that they hand out: any of them recognizes those of the others. One row.
-- A new key makes receipts void: attempts that run at that moment are lost, and run again.
CREATE TABLE tenure.gateway_keys (
    id  smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    key bytea NOT NULL CHECK (octet_length(key) >= 32)
);
INSERT INTO tenure.gateway_keys (key) VALUES (uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
REVOKE ALL ON tenure.gateway_keys FROM PUBLIC;
-- postgres/roles.sql gives this role every new table to read. With the key, a receipt could be made up.
CREATE FUNCTION tenure.hide_gateway_keys() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tenure_viewer') THEN
        REVOKE ALL ON tenure.gateway_keys FROM tenure_viewer;
    END IF;
END $$;
SELECT tenure.hide_gateway_keys();
DROP FUNCTION tenure.hide_gateway_keys();

-- The language of a worker behind a gateway; `version` is that of its client. NULL: it is tenure itself.
ALTER TABLE tenure.workers ADD COLUMN language text;
