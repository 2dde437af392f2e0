-- who_runs: what a queued job may wait for: its queue, and the live workers that serve the queue and run the kind.
--
--   $1 queue  $2 kind  $3 job id
--
-- One row. A worker that drains takes no job, and counts only in `draining`. `not_ready`: if none of the workers that
-- run the kind takes jobs, what keeps one of them from it. `slots` and `busy` are of the workers that run the kind, in
-- all of their queues. `strangers`: live workers of the queue that do not know the kind, and put the job off when they
-- get it. Reads the table of live jobs as a whole, unless an earlier reason keeps the job waiting: then `busy` is 0.
WITH alive AS MATERIALIZED (
    SELECT worker_id, slots, not_ready, draining_at IS NOT NULL AS drains,
           kinds IS NULL OR $2 = ANY (kinds) AS runs_kind
      FROM tenure.workers
     WHERE queues @> ARRAY[$1] AND last_seen_at > statement_timestamp() - 3 * renew_every
), fit AS MATERIALIZED (
    SELECT * FROM alive WHERE runs_kind AND NOT drains
)
SELECT EXISTS (SELECT FROM alive WHERE NOT drains) AS serves_queue,
       EXISTS (SELECT FROM fit) AS runs_kind,
       (SELECT count(*) FROM alive WHERE drains) AS draining,
       (SELECT count(*) FROM alive WHERE NOT drains AND NOT runs_kind) AS strangers,
       (SELECT count(*) FROM fit) AS fit,
       (SELECT max(not_ready) FROM fit HAVING bool_and(not_ready IS NOT NULL)) AS not_ready,
       (SELECT coalesce(sum(slots), 0) FROM fit)::bigint AS slots,
       CASE WHEN q.paused_at IS NULL AND EXISTS (SELECT FROM fit WHERE not_ready IS NULL) THEN
            (SELECT count(*) FROM tenure.jobs
              WHERE status = 'processing' AND worker_id IN (SELECT worker_id FROM fit))
            ELSE 0
       END AS busy,
       q.paused_at IS NOT NULL AS is_paused,
       q.max_running,
       CASE WHEN q.max_running IS NOT NULL THEN
            (SELECT count(*) FILTER (WHERE (SELECT r.status = 'processing' AND r.fencing_token = s.fencing_token
                                              FROM tenure.jobs r WHERE r.id = s.job_id))
               FROM tenure.queue_slots s WHERE s.queue = $1)
       END AS running,
       extract(epoch FROM statement_timestamp() - j.put_off_since)::float8 AS put_off_s,
       extract(epoch FROM j.published_at - statement_timestamp())::float8 AS again_in_s
  FROM (SELECT $1::text AS queue) n
  LEFT JOIN tenure.queues q USING (queue)
  LEFT JOIN tenure.jobs j ON j.id = $3
