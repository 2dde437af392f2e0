-- gateway_key: the key with which gateways sign receipts.
SELECT key FROM tenure.gateway_keys
