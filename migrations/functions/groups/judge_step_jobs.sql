-- Returns the jobs to wake: no edge of a step that the notes or this call name is open any more.
--
--   noted_steps, settled_steps: [job, step], whose edges other transactions have settled, or this one; NULL: none
--   noted_or_settled: both   has_looks: this call has noted some for a next one
--
-- Part of `release_followers`, with its rights and settings. It locks the rows of the jobs: a job that is about to be
-- held either is held by now, or is looked at once more, or will see the edges. One that is locked is noted anew. So is
-- one that still waits after this call has settled edges of it, as another transaction may settle the last ones now.
CREATE OR REPLACE FUNCTION tenure.judge_step_jobs(noted_steps jsonb, settled_steps jsonb, OUT woken uuid[],
    OUT noted_or_settled jsonb, OUT has_looks boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    locked_here uuid[];
BEGIN
    has_looks := false;
    noted_or_settled := coalesce(noted_steps || settled_steps, noted_steps, settled_steps);
    IF noted_or_settled IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(j.id) INTO locked_here
      FROM (SELECT j.id FROM tenure.jobs j
             WHERE j.id = ANY (ARRAY(SELECT (w ->> 0)::uuid FROM jsonb_array_elements(noted_or_settled) AS w))
             ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED) j;
    WITH seen AS MATERIALIZED (
        SELECT f.job_id, f.open_n,
               (SELECT d.n FROM tenure.job_edges d
                 WHERE d.after = f.job_id AND d.n >= f.open_n AND d.state IS NULL AND d.step IS NOT NULL
                 ORDER BY d.n LIMIT 1) AS next_n
          FROM tenure.followers f
         WHERE f.job_id = ANY (locked_here)
    ), remembered AS (
        UPDATE tenure.followers f SET open_n = s.next_n
          FROM seen s
         WHERE f.job_id = s.job_id AND s.next_n > s.open_n
           AND f.job_id IN (SELECT o.job_id FROM tenure.followers o WHERE o.job_id = ANY (locked_here) ORDER BY o.job_id
                               FOR NO KEY UPDATE SKIP LOCKED)
    )
    SELECT array_agg(DISTINCT w.job) INTO woken
      FROM (SELECT (w ->> 0)::uuid AS job, w ->> 1 AS step FROM jsonb_array_elements(noted_or_settled) AS w) w
      JOIN seen s ON s.job_id = w.job
     -- A call of another name may have open edges before these.
     WHERE CASE WHEN EXISTS (SELECT FROM tenure.job_edges d
                              WHERE d.after = w.job AND d.n >= s.next_n AND d.state IS NULL AND d.step = w.step)
                THEN false
                ELSE NOT EXISTS (SELECT FROM tenure.job_edges d
                                  WHERE d.after = w.job AND d.state IS NULL AND d.step = w.step) END;
    INSERT INTO tenure.group_ends (job_id, ended_as, step)
    SELECT w.job, 'settled', w.step
      FROM (SELECT (w ->> 0)::uuid AS job, w ->> 1 AS step FROM jsonb_array_elements(noted_or_settled) AS w) w
     WHERE (w.job IN (SELECT unnest(locked_here))) IS NOT TRUE AND EXISTS (SELECT FROM tenure.jobs j WHERE j.id = w.job)
     UNION
    SELECT w.job, 'settled', w.step
      FROM (SELECT (w ->> 0)::uuid AS job, w ->> 1 AS step FROM jsonb_array_elements(settled_steps) AS w) w
     WHERE (w.job IN (SELECT unnest(locked_here))) IS TRUE AND (w.job IN (SELECT unnest(woken))) IS NOT TRUE;
    has_looks := FOUND AND settled_steps IS NOT NULL;
END $$;

REVOKE ALL ON FUNCTION tenure.judge_step_jobs(jsonb, jsonb) FROM PUBLIC;
