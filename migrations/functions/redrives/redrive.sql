-- Puts dead jobs back into the queue, under the same id, and returns their ids. A job without a row is not dead, or
-- is a message that was refused before it was a job.
--
-- Attempts and losses count from 0 again; the token and the dispatch go on, so that neither a write of an old attempt
-- nor a message of an old publication can pass for a new one. The attempt that ended the job joins the others in
-- job_executions. A member of a group is one again: its followers hear of its next end. A follower that has died
-- before it started is held again, while it has jobs to wait for.
--
-- Called by src/store/job/redrive.sql and `redrive_next`. It runs with its caller's rights: PUBLIC may execute it,
-- and only who may delete dead letters redrives any.
-- Two calls at once: the second waits for the dead letter's row, and finds it gone. So does one after a lost answer.
CREATE OR REPLACE FUNCTION tenure.redrive(ids uuid[]) RETURNS SETOF uuid
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
WITH picked AS MATERIALIZED (
    SELECT * FROM tenure.dead_letter_jobs
     WHERE id = ANY (ids) AND payload IS NOT NULL
     ORDER BY id
       FOR UPDATE
), audited AS (
    INSERT INTO tenure.job_executions (job_id, fencing_token, attempt, claim_id, worker_id, started_at,
           finished_at, outcome, error)
    SELECT id, fencing_token, attempt, claim_id, worker_id, started_at, died_at, last_outcome, last_error
      FROM picked
     WHERE claim_id IS NOT NULL
), gone AS (
    DELETE FROM tenure.dead_letter_jobs d USING picked WHERE d.id = picked.id
)
INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, fencing_token, created_at, scheduled_at,
       checkpoint, trace_context, last_error, dispatch, publish_at, clear_reason, lane, priority, group_id)
SELECT id, queue, kind, payload, max_attempts, fencing_token, created_at, due_at,
       checkpoint, trace_context, last_error, dispatch, due_at, 'redriven', lane, priority,
       coalesce((SELECT e.group_id FROM tenure.job_edges e WHERE e.before = picked.id LIMIT 1),
                (SELECT f.group_id FROM tenure.followers f WHERE f.job_id = picked.id))
  FROM picked
 CROSS JOIN LATERAL (SELECT tenure.redriven_at(picked.id, picked.fencing_token) AS due_at OFFSET 0) d
 WHERE (SELECT tenure.reopen_edges(ARRAY(SELECT id FROM picked)) IS NOT NULL)
RETURNING id
$$;

GRANT EXECUTE ON FUNCTION tenure.redrive(uuid[]) TO PUBLIC;
