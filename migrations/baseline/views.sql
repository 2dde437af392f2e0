-- Views: every job and every attempt, wherever its row stands, for people and for programs outside tenure.

-- Every job. Names and meaning are stable: docs/cli.md. A column that is not named below is that of the job's table.
CREATE VIEW tenure.all_jobs AS
-- Live jobs. scheduled_at: from the year 9998 on, the job is held.
SELECT id, queue, kind, payload, status, attempt, max_attempts, fencing_token, worker_id, created_at,
       scheduled_at, started_at, last_activity_at, NULL::timestamptz AS finished_at, stage, progress,
       message, NULL::jsonb AS output, last_error
  FROM tenure.jobs
UNION ALL
-- Those that completed or were cancelled. worker_id, started_at: of the attempt that ended the job.
SELECT id, queue, kind, payload, status, attempt, max_attempts, fencing_token, worker_id, created_at,
       scheduled_at, started_at, last_activity_at, finished_at, stage, progress, message, output, last_error
  FROM tenure.job_history
UNION ALL
-- Dead letters, refused submissions among them: their payload is NULL. finished_at: when the job died.
SELECT id, queue, kind, payload, 'failed', attempt, max_attempts, fencing_token, worker_id, created_at,
       scheduled_at, started_at, last_activity_at, died_at, stage, progress, message, NULL, last_error
  FROM tenure.dead_letter_jobs;

-- Every claim of every job, but the last hundred of a job at most that did not end it.
CREATE VIEW tenure.job_executions_all AS
-- The attempt that runs: it has no end and no outcome yet.
SELECT id AS job_id, fencing_token, attempt, worker_id, started_at, NULL::timestamptz AS finished_at,
       NULL::text AS outcome, NULL::text AS error
  FROM tenure.jobs WHERE claim_id IS NOT NULL
UNION ALL
-- Those that did not end their job: retried, snoozed, released, lost; failed, if the job was redriven since.
SELECT job_id, fencing_token, attempt, worker_id, started_at, finished_at, outcome, error
  FROM tenure.job_executions
UNION ALL
-- The one that completed or cancelled it. A completed attempt has no error: last_error is that of an earlier one.
SELECT id, fencing_token, attempt, worker_id, started_at, finished_at, status,
       CASE WHEN status = 'cancelled' THEN last_error END
  FROM tenure.job_history WHERE claim_id IS NOT NULL
UNION ALL
-- The one after which it was a dead letter: failed or lost.
SELECT id, fencing_token, attempt, worker_id, started_at, died_at, last_outcome, last_error
  FROM tenure.dead_letter_jobs WHERE claim_id IS NOT NULL;
