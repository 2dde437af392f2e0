-- in_lane: the lane of a job `j` of all_jobs: its key, its priority, until when it may start, and for a held job when
-- it is due. A job that has finished left its lane.
--
-- LIMIT: or the planner could read the tables as a whole.
  LEFT JOIN LATERAL (
       SELECT l.lane, l.priority, l.not_after,
              l.publish_at >= '9998-01-01 00:00:00+00' AND l.status = 'queued' AS is_held,
              (SELECT w.due_at FROM tenure.lane_jobs w
                WHERE w.job_id = l.id AND l.publish_at >= '9998-01-01 00:00:00+00'
                  AND w.due_at < '9998-01-01 00:00:00+00') AS due_at
         FROM tenure.jobs l WHERE l.id = j.id
        UNION ALL
       SELECT d.lane, d.priority, NULL, false, NULL FROM tenure.dead_letter_jobs d WHERE d.id = j.id
        LIMIT 1) AS at ON j.status IN ('queued', 'processing', 'failed')
