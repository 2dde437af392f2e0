-- schema_version: the newest migration applied, and the oldest that a program must know to work with it.
--
-- breaks_before: set by a migration that takes something away; as JSON, since a schema of before migration 5 has no such
-- column, and must be told apart from none.
SELECT coalesce(max(m.version), 0) AS version,
       coalesce(max((to_jsonb(m) ->> 'breaks_before')::bigint), 0) AS breaks_before
  FROM tenure.migrations m
