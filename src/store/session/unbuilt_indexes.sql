-- unbuilt_indexes: the named indexes that do not exist, or are not finished.
--
--   $1 names, with their schema
SELECT n.name, i.indexrelid IS NOT NULL AS is_there,
       EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = i.indexrelid) AS is_being_built
  FROM unnest($1::text[]) AS n(name)
  LEFT JOIN pg_index i ON i.indexrelid = to_regclass(n.name)
 WHERE i.indisvalid IS NOT TRUE
