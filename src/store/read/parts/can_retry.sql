-- can_retry: whether a retry touches a job `j`: it waits for its time, or it is a dead letter and not a refused
-- message. A held job that is due waits for its lane.
       (status = 'queued' AND scheduled_at > statement_timestamp()
        AND (scheduled_at < '9998-01-01 00:00:00+00'
             OR EXISTS (SELECT FROM tenure.lane_jobs w WHERE w.job_id = j.id AND w.due_at > statement_timestamp()))
        OR status = 'failed' AND payload IS NOT NULL)
