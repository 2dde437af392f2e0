-- schema_version: the newest migration applied, and the oldest that a program must know to work with the schema.
--
-- breaks_before: set by a migration that takes something away. Read as JSON: a schema older than migration 5 has no
-- such column, and must not look like a missing schema.
SELECT coalesce(max(m.version), 0) AS version,
       coalesce(max((to_jsonb(m) ->> 'breaks_before')::bigint), 0) AS breaks_before
  FROM tenure.migrations m
