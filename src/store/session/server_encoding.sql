-- server_encoding: how this database stores text.
SELECT current_setting('server_encoding') AS encoding
