-- can_cancel: whether a cancellation touches a job.
       status IN ('queued', 'processing')
