-- locked_job: the columns that end_attempt.sql needs of each job, which is locked under the alias j.
           j.id, j.queue, j.kind, j.attempt, j.max_attempts, j.fencing_token, j.claim_id, j.worker_id,
           j.started_at, j.cancel_requested_at, j.losses, j.on_crash, j.lane, j.priority
