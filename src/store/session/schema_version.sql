-- schema_version: the newest migration applied, the oldest that a program must know to work with the schema, and the
-- functions that the schema lacks.
--
--   $1 the functions that this program calls
--
-- breaks_before: set by a migration that takes something away.
SELECT coalesce(max(m.version), 0) AS version,
       coalesce(max(m.breaks_before), 0) AS breaks_before,
       ARRAY(SELECT n.name FROM unnest($1::text[]) AS n(name)
              WHERE NOT EXISTS (SELECT FROM pg_proc p
                                 WHERE p.pronamespace = 'tenure'::regnamespace AND p.proname = n.name)) AS lacks
  FROM tenure.migrations m
