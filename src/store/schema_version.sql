-- schema_version: the newest migration applied.
SELECT coalesce(max(version), 0) AS version FROM tenure.migrations
