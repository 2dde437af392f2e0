-- settle_suspended: settle.sql for batches with attempts that wait for events, or for jobs of their own.
--
--   $1 to $12 as settle.sql  $13 what each attempt waits for: the name of an event or a step, empty if it sleeps, or NULL
--
-- The row is locked first. The function sees what was committed before the lock, which the statement's snapshot may not
-- show; what comes later finds the job held, and wakes it. So neither order loses an event.
-- Made of parts: `scripts/statement settle_suspended` prints it whole.
WITH taken AS MATERIALIZED (
-- include job/parts/ended_attempts.sql
), locked AS MATERIALIZED (
    SELECT ord, verdict, error, category,
           CASE WHEN a.awaits IS NULL THEN delay_s
                ELSE tenure.suspended_for(id, a.awaits, delay_s, started_at) END AS delay_s,
           path, reason, recovered_by, silence, id, queue, kind, attempt, max_attempts, fencing_token, claim_id, worker_id,
           started_at, cancel_requested_at, losses, on_crash, lane, priority
      FROM taken
     CROSS JOIN LATERAL (SELECT ($13::text[])[taken.ord + 1] AS awaits) a
)
-- include job/parts/end_attempt.sql
