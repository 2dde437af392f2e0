-- unindexed_partitions: the partitions of the history without an index of ends, and the statements that build each one.
--
-- An index that an earlier try left unfinished is dropped first.
SELECT format('DROP INDEX CONCURRENTLY IF EXISTS tenure.%I', c.relname || '_by_end') AS drop_it,
       format('CREATE INDEX CONCURRENTLY %I ON tenure.%I USING brin (finished_at) '
              'WITH (pages_per_range = 512, autosummarize = on)', c.relname || '_by_end', c.relname) AS create_it,
       format('ALTER INDEX tenure.job_history_by_end ATTACH PARTITION tenure.%I', c.relname || '_by_end') AS attach_it
  FROM pg_inherits i
  JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = to_regclass('tenure.job_history')
   AND to_regclass('tenure.job_history_by_end') IS NOT NULL
   AND NOT EXISTS (SELECT FROM pg_index x JOIN pg_inherits p ON p.inhrelid = x.indexrelid
                    WHERE x.indrelid = c.oid AND p.inhparent = to_regclass('tenure.job_history_by_end'))
 ORDER BY c.relname
