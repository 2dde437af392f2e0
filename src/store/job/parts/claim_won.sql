-- claim_won: requires a job that is queued, due and not expired, and returns the claim.
   AND j.queue = $2
   AND j.kind = $3
   AND j.status = 'queued'
   AND j.scheduled_at <= statement_timestamp()
   AND (j.not_after IS NULL OR j.not_after > statement_timestamp())
RETURNING j.id, j.fencing_token, j.claim_id, j.payload::text AS payload, j.attempt, j.max_attempts,
          j.checkpoint::text AS checkpoint, j.trace_context, j.dispatch,
          extract(epoch FROM j.started_at - j.scheduled_at)::float8 AS waited_s, j.lane,
          j.group_id, j.losses
