-- Gateway: workers that speak the worker protocol over NATS.

-- The key with which gateways sign the receipts that they hand out: any of them recognizes those of the others. One
-- row. A new key makes receipts void: attempts that run at that moment are lost, and run again.
CREATE TABLE tenure.gateway_keys (
    id  smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1),      -- always 1: there is one row
    key bytea NOT NULL CHECK (octet_length(key) >= 32)      -- random; only workers may read it
);
INSERT INTO tenure.gateway_keys (key) VALUES (uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
-- Who knows the key can make up a receipt; default privileges of the database may give PUBLIC every new table.
REVOKE ALL ON tenure.gateway_keys FROM PUBLIC;
