-- fleet: the latest measurements, with ages as of now. One row a queue, and one without a queue for all of them.
--
-- A count of the stream that is too old is NULL. `standing`: the submissions that count towards max_queued. A queue
-- whose workers all fell silent within the last day has a row, too. A worker that drains counts in `draining`
-- alone. `in_lanes`: the queue's held jobs; `in_lanes_due`: those whose time has come.
WITH seen AS MATERIALIZED (
    SELECT queue, count(*) FILTER (WHERE is_alive AND draining_at IS NULL) AS workers,
           count(*) FILTER (WHERE is_alive AND draining_at IS NOT NULL) AS draining,
           extract(epoch FROM statement_timestamp() - max(w.last_seen_at))::float8 AS last_seen_s
      FROM tenure.workers w, unnest(w.queues) AS queue,
           LATERAL (SELECT w.last_seen_at > statement_timestamp() - 3 * w.renew_every AS is_alive) AS alive
     WHERE w.last_seen_at > statement_timestamp() - interval '1 day'
     GROUP BY queue
), names (queue) AS (
    SELECT queue FROM tenure.queue_stats
     UNION
    SELECT queue FROM tenure.queues
     UNION
    SELECT queue FROM seen WHERE workers = 0
)
SELECT NULL AS queue, NULL::bigint AS due, NULL::bigint AS scheduled, NULL::bigint AS processing,
       NULL::bigint AS in_lanes, NULL::bigint AS in_lanes_due, NULL::bigint AS lanes_waiting, NULL::bigint AS submitted,
       coalesce(extract(epoch FROM statement_timestamp() - s.relay_due_at), 0)::float8 AS lag_s,
       coalesce(s.grace_until > statement_timestamp(), false) OR s.breaker_since IS NOT NULL AS held,
       extract(epoch FROM statement_timestamp() - s.measured_at)::float8 AS age_s, coalesce(s.dead, 0) AS dead,
       w.workers, w.draining, w.silent, w.last_seen_s, w.not_ready, w.why_not_ready,
       extract(epoch FROM statement_timestamp() - s.last_scan_at)::float8 AS last_scan_s,
       (SELECT max(breaks_before) FROM tenure.migrations) AS breaks_before, NULL::bigint AS standing,
       CASE WHEN s.unserved_until > statement_timestamp() THEN
            (SELECT jsonb_agg(one || jsonb_build_object('oldest_s',
                              extract(epoch FROM statement_timestamp() - (one ->> 'oldest_at')::timestamptz)))
               FROM jsonb_array_elements(s.unserved) AS u (one))::text
       END AS unserved, CASE WHEN s.unserved_until > statement_timestamp() THEN s.misnamed END AS misnamed,
       s.misnamed_subject, NULL::int AS max_running, NULL::bigint AS max_queued, statement_timestamp() AS now,
       current_setting('transaction_read_only')::boolean AS is_read_only, tenure.has_quarantines() AS has_quarantines,
       CASE WHEN s.findings_until > statement_timestamp() THEN s.findings::text END AS findings
  FROM tenure.scanner_state s
 CROSS JOIN (
       SELECT count(*) FILTER (WHERE is_alive AND draining_at IS NULL) AS workers,
              count(*) FILTER (WHERE is_alive AND draining_at IS NOT NULL) AS draining,
              count(*) FILTER (WHERE NOT is_alive AND last_seen_at > statement_timestamp() - interval '1 hour') AS silent,
              extract(epoch FROM statement_timestamp() - max(last_seen_at))::float8 AS last_seen_s,
              count(*) FILTER (WHERE is_alive AND draining_at IS NULL AND not_ready IS NOT NULL) AS not_ready,
              max(not_ready) FILTER (WHERE is_alive AND draining_at IS NULL) AS why_not_ready
         FROM (SELECT last_seen_at, not_ready, draining_at, last_seen_at > statement_timestamp() - 3 * renew_every AS is_alive
                 FROM tenure.workers) AS known) AS w
 UNION ALL
SELECT queue, coalesce(t.due, 0), coalesce(t.scheduled, 0), coalesce(t.processing, 0),
       coalesce(t.held, 0), coalesce(t.held_due, 0), coalesce(t.lanes_waiting, 0),
       CASE WHEN t.submitted_until > statement_timestamp() THEN t.submitted
            WHEN t.queue IS NULL AND s.stream_until > statement_timestamp()
             AND s.stream_measured_at = s.measured_at THEN 0 END,
       coalesce(greatest(0, extract(epoch FROM statement_timestamp() - least(t.oldest_due_at,
                CASE WHEN t.submitted_until > statement_timestamp() THEN t.oldest_submitted_at END))), 0)::float8,
       q.paused_at IS NOT NULL, NULL, NULL, coalesce(w.workers, 0), coalesce(w.draining, 0), NULL, w.last_seen_s, NULL, NULL, NULL, NULL,
       CASE WHEN t.standing_until > statement_timestamp() THEN t.standing END, NULL, NULL, NULL,
       q.max_running, q.max_queued, statement_timestamp(), NULL, NULL, NULL
  FROM names
 CROSS JOIN tenure.scanner_state s
  LEFT JOIN tenure.queue_stats t USING (queue)
  LEFT JOIN tenure.queues q USING (queue)
  LEFT JOIN seen w USING (queue)
