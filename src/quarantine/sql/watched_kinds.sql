-- watched_kinds: what a worker needs of the rules.
--
-- One row a rule. `probe_in_s`: when a job may be tried; NULL: one is.
SELECT kind, began_at IS NOT NULL AS quarantined, ended, failed,
       CASE WHEN probe_job IS NULL AND next_probe_at > statement_timestamp() + probe_every THEN 0
            WHEN probe_job IS NULL THEN extract(epoch FROM next_probe_at - statement_timestamp()) END::float8 AS probe_in_s
  FROM tenure.quarantines
 WHERE removed_at IS NULL
