-- end_attempt: every end of an attempt but completion. The statements that include it open with `locked`, which
-- names the jobs and the reasons; this part decides the route of each job, and writes its records.
--
--   cancel asked for, or the handler cancelled         → job_history, cancelled
--   failed for good, out of attempts, or lost while its
--   kind must not run twice                            → dead_letter_jobs, with the last hundred attempts
--   else                                               → queued; the relay publishes when due. In a queue with lanes:
--                                                        held, and due in its lane then; an ordered lane waits for it.
--                                                        One that waits for an event or for jobs of its own is held, too
--
-- The rows are locked and were read after the wait for the lock, so the two branches below can neither
-- miss a row nor share one. A snooze and a release do not charge the attempt; the token is never reset.
-- The first loss is retried at once; repeated ones back off, 5 s doubling to 300 s, ±25 %.
-- A job that was lost in a batch with others (on_crash 'halve') is perhaps not the cause: its attempt is not charged,
-- and it is retried at once. It is alone after a few losses (runs_alone.sql), and then charged as any other; so is one that
-- never comes to its batch, after sixteen.
-- A job that snoozes for ever keeps its last hundred attempts: every fiftieth end deletes the older ones.
, routed AS MATERIALIZED (
    SELECT locked.*,
           CASE WHEN cancel_requested_at IS NOT NULL OR verdict = 'cancelled' THEN 'cancelled'
                WHEN verdict = 'failed' THEN 'failed'
                WHEN verdict IN ('retried', 'lost') AND attempt >= max_attempts
                     AND NOT (verdict = 'lost' AND on_crash = 'halve' AND losses < 16) THEN 'failed'
                WHEN verdict = 'lost' AND on_crash = 'dead_letter' THEN 'failed'
                ELSE 'queued'
           END AS route,
           least('9999-01-01 00:00:00+00', clock_timestamp() + interval '1 second' * coalesce(delay_s,
                CASE WHEN losses = 0 OR on_crash = 'halve' AND losses < 16 THEN 0
                     ELSE least(300, 5 * power(2, least(losses, 16) - 1)) * (0.75 + 0.5 * random())
                END)) AS due_at,
           verdict = 'lost' AND on_crash = 'halve' AND losses < 16 AS spared,
           CASE WHEN lane IS NULL THEN false
                ELSE coalesce((SELECT NOT s.ordered AND s.removed_at IS NULL FROM tenure.lane_settings s
                                WHERE s.queue = locked.queue), false) END AS to_lane
      FROM locked
), requeued AS (
    UPDATE tenure.jobs j
       -- An ordered lane keeps the slot of a job that waits: to the lane, one that is held has none.
       SET status           = 'queued',
           attempt          = j.attempt - CASE WHEN r.verdict IN ('snoozed', 'released') OR r.spared THEN 1 ELSE 0 END,
           claim_id         = NULL,
           worker_id        = NULL,
           worker_host      = NULL,
           stale_after      = NULL,
           last_activity_at = NULL,
           started_at       = NULL,
           scheduled_at     = CASE WHEN r.to_lane THEN '9999-01-01 00:00:00+00'
                                   WHEN r.lane IS NULL THEN r.due_at ELSE least(r.due_at, '9998-01-01 00:00:00+00') END,
           publish_at       = CASE WHEN r.to_lane THEN '9999-01-01 00:00:00+00'
                                   WHEN r.lane IS NULL THEN r.due_at ELSE least(r.due_at, '9998-01-01 00:00:00+00') END,
           published_at     = NULL,
           clear_reason     = r.reason,
           losses           = j.losses + CASE WHEN r.verdict = 'lost' THEN 1 ELSE 0 END,
           -- A snooze has an error only if the job has not run: its attempt says why.
           last_error       = CASE WHEN r.verdict = 'snoozed' THEN j.last_error ELSE coalesce(r.error, j.last_error) END
      FROM routed r
     WHERE j.id = r.id AND r.route = 'queued'
       AND j.id = ANY (ARRAY(SELECT id FROM locked))
), lined AS (
    INSERT INTO tenure.lane_jobs (job_id, queue, lane, priority, due_at)
    SELECT id, queue, lane, coalesce(priority, 0), due_at
      FROM routed
     WHERE route = 'queued' AND to_lane
        ON CONFLICT (job_id) DO UPDATE SET place = NULL, due_at = excluded.due_at
), woken AS (
    INSERT INTO tenure.lane_wakes (at, queue, lane, job_id)
    SELECT due_at, queue, lane, id
      FROM routed
     WHERE route = 'queued' AND to_lane AND due_at < '9999-01-01 00:00:00+00'
), audited AS (
    INSERT INTO tenure.job_executions (job_id, fencing_token, attempt, claim_id, worker_id, started_at,
           finished_at, outcome, error)
    SELECT id, fencing_token, attempt, claim_id, worker_id, started_at, clock_timestamp(), verdict, error
      FROM routed
     WHERE route = 'queued'
), gone AS (
    DELETE FROM tenure.jobs j
     USING routed r
     WHERE j.id = r.id AND r.route <> 'queued'
       AND j.id = ANY (ARRAY(SELECT id FROM locked))
    RETURNING j.*, r.route, r.verdict, r.error, r.category
), unlined AS (
    DELETE FROM tenure.lane_jobs l WHERE l.job_id = ANY (ARRAY(SELECT id FROM gone WHERE lane IS NOT NULL))
), freed AS (
    -- Its slot, or its place at the head of an ordered lane.
    INSERT INTO tenure.lane_wakes (at, queue, lane)
    SELECT clock_timestamp(), queue, lane FROM gone WHERE lane IS NOT NULL
), cancelled AS (
    INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
           claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at,
           stage, progress, message, trace_context, last_error)
    SELECT id, queue, kind, payload, 'cancelled', attempt, max_attempts, fencing_token,
           claim_id, worker_id, created_at, least(scheduled_at, clock_timestamp()), started_at, last_activity_at,
           clock_timestamp(),
           stage, progress, message, trace_context, coalesce(error, last_error)
      FROM gone
     WHERE route = 'cancelled'
), buried AS (
    INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token,
           claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, died_at,
           stage, progress, message, checkpoint, trace_context, losses, dispatch, last_outcome, last_error,
           category, lane, priority, execution_history)
    SELECT id, queue, kind, payload, attempt, max_attempts, fencing_token,
           claim_id, worker_id, created_at, least(scheduled_at, clock_timestamp()), started_at, last_activity_at, clock_timestamp(),
           stage, progress, message, checkpoint, trace_context,
           losses + CASE WHEN verdict = 'lost' THEN 1 ELSE 0 END, dispatch,
           CASE WHEN claim_id IS NULL THEN NULL WHEN verdict = 'lost' THEN 'lost' ELSE 'failed' END,
           coalesce(error, last_error, 'no reason given'),
           coalesce(category, CASE verdict WHEN 'retried' THEN 'exhausted' ELSE 'permanent' END), lane, priority,
           coalesce((SELECT jsonb_agg(to_jsonb(e) - 'job_id' - 'claim_id' ORDER BY e.fencing_token)
                       FROM (SELECT * FROM tenure.job_executions e WHERE e.job_id = gone.id
                              ORDER BY e.fencing_token DESC LIMIT 100) e), '[]')
           || CASE WHEN claim_id IS NULL THEN '[]' ELSE jsonb_build_array(jsonb_build_object(
                  'fencing_token', fencing_token, 'attempt', attempt, 'worker_id', worker_id,
                  'started_at', started_at, 'finished_at', clock_timestamp(),
                  'outcome', CASE WHEN verdict = 'lost' THEN 'lost' ELSE 'failed' END, 'error', error)) END
      FROM gone
     WHERE route = 'failed'
    -- A worker with other limits refused the job's message earlier, and left a dead letter under this id.
    ON CONFLICT (id) DO UPDATE
       SET (queue, kind, payload, raw_payload, subject, attempt, max_attempts, fencing_token,
           claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, died_at,
           stage, progress, message, checkpoint, trace_context, losses, dispatch, last_outcome, last_error,
           category, lane, priority, execution_history, ended_xid)
         = (excluded.queue, excluded.kind, excluded.payload, NULL, NULL, excluded.attempt, excluded.max_attempts,
           excluded.fencing_token, excluded.claim_id, excluded.worker_id, excluded.created_at, excluded.scheduled_at,
           excluded.started_at, excluded.last_activity_at, excluded.died_at, excluded.stage, excluded.progress,
           excluded.message, excluded.checkpoint, excluded.trace_context, excluded.losses, excluded.dispatch,
           excluded.last_outcome, excluded.last_error, excluded.category, excluded.lane, excluded.priority,
           excluded.execution_history,
           excluded.ended_xid)
), noted AS (
    INSERT INTO tenure.recovery_events (event, path, job_id, fencing_token, owner_before, silence, reason,
           recovered_by)
    SELECT CASE WHEN verdict = 'released' THEN 'release' ELSE 'reset' END, path, id, fencing_token,
           worker_id, silence, reason, recovered_by
      FROM routed
     WHERE path IS NOT NULL
)
SELECT ord, id, queue, kind, fencing_token, worker_id, route, category,
       extract(epoch FROM silence)::float8 AS silence_s,
       CASE WHEN route = 'queued' AND fencing_token > 100 AND fencing_token % 50 = 0
            THEN tenure.keep_last_executions(id) IS NULL END AS forgotten
  FROM routed
