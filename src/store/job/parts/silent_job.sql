-- silent_job: the columns of a locked job that was silent for longer than its stale_after, and where they come from.
-- The statement adds path, recovered_by and the WHERE.
--
-- A worker that has renewed its row since the job's last heartbeat, and in time, is alive: only the handler is silent.
           CASE WHEN owner.lives
                THEN format('the handler was silent for %s s; its worker %s is alive', owner.silence_s, j.worker_id)
                ELSE format('worker lost: no sign of life from %s for %s s', j.worker_id, owner.silence_s)
           END AS error,
           CASE WHEN owner.lives THEN 'silent' ELSE 'lost' END AS category,
           CASE WHEN owner.lives
                THEN 'its handler was silent for longer than stale_after; its worker is alive'
                ELSE 'silent for longer than stale_after, and so was its worker'
           END AS reason,
-- include job/parts/lost_job.sql
      FROM tenure.jobs j
      LEFT JOIN tenure.workers w ON w.worker_id = j.worker_id AND w.last_seen_at > j.last_activity_at
     CROSS JOIN LATERAL (
         SELECT seen.lives,
                round(extract(epoch FROM statement_timestamp()
                              - CASE WHEN seen.lives THEN j.last_activity_at
                                     ELSE coalesce(w.last_seen_at, j.last_activity_at) END)::numeric, 1) AS silence_s
           FROM (SELECT coalesce(w.last_seen_at > statement_timestamp() - 1.4 * w.renew_every, false) AS lives) seen
     ) owner
