-- can_retry: whether a retry touches a job: it waits for its time, or it is a dead letter and not a refused message.
       (status = 'queued' AND scheduled_at > statement_timestamp() OR status = 'failed' AND payload IS NOT NULL)
