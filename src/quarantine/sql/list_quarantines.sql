-- list_quarantines: the rules of all kinds, and what has become of them.
--
-- One row a rule. `lately_*`: the attempts that count towards the rule. `waiting`: at most 100,000.
SELECT q.kind, q.share, q.attempts, extract(epoch FROM q.within)::float8 AS within_s,
       extract(epoch FROM q.probe_every)::float8 AS probe_every_s, q.began_at, q.ended, q.failed,
       (SELECT coalesce(sum(c.ended), 0)::bigint FROM tenure.quarantine_counts c
         WHERE c.kind = q.kind AND c.at >= greatest(statement_timestamp() - q.within, q.counted_from)) AS lately_ended,
       (SELECT coalesce(sum(c.failed), 0)::bigint FROM tenure.quarantine_counts c
         WHERE c.kind = q.kind AND c.at >= greatest(statement_timestamp() - q.within, q.counted_from)) AS lately_failed,
       (SELECT count(*) FROM (SELECT FROM tenure.quarantined_jobs w WHERE w.kind = q.kind AND q.began_at IS NOT NULL
                               LIMIT 100000) w) AS waiting,
       q.probes, q.last_probe, q.probe_job, q.next_probe_at
  FROM tenure.quarantines q
 WHERE q.removed_at IS NULL
 ORDER BY q.kind
