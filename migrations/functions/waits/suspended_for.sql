-- Returns for how many seconds a job is suspended whose attempt began at `since`: at most `longest`, and until the end
-- of a sleep or of a wait that is recorded. 0, if an event or the last job of a step has come since then, of any
-- name: a handler may wait for several at once. 0, too, if it waits for nothing, or if the attempt began ahead of the
-- clock, which has stepped back: what came since then is not known. What came ahead of the clock, the attempt may have
-- seen: it is suspended for half a minute.
--
--   name: the event or the step for which the attempt waits; empty: it sleeps
--
-- src/store/job/forms/settle_suspended.sql calls it, having locked the row of the job. What is committed later finds
-- the job held, and wakes it: `signal` locks the row, and so does `release_followers`.
-- It runs with the caller's rights: a worker may read effects and edges.
CREATE OR REPLACE FUNCTION tenure.suspended_for(job uuid, name text, longest float8, since timestamptz) RETURNS float8
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    came   CONSTANT timestamptz := greatest(
        (SELECT max(e.created_at) FROM tenure.effects e WHERE e.job_id = job AND e.step_kind = 'event'),
        (SELECT max(s.ended_at)
           FROM (SELECT max(d.ended_at) AS ended_at FROM tenure.job_edges d
                  WHERE d.after = job AND d.step IS NOT NULL
                  GROUP BY d.step HAVING bool_and(d.state IS NOT NULL)) s));
BEGIN
    IF came > moment AND since <= moment THEN
        longest := least(longest, 30);
    ELSIF came >= since OR since > moment
       OR name <> ''
          AND NOT EXISTS (SELECT FROM tenure.effects e
                           WHERE e.job_id = job AND e.key = name AND e.step_kind = 'awaited')
          AND NOT EXISTS (SELECT FROM tenure.job_edges d WHERE d.after = job AND d.state IS NULL AND d.step = name) THEN
        RETURN 0;
    END IF;
    RETURN greatest(0, least(longest, (SELECT extract(epoch FROM min(e.wakes_at) - clock_timestamp())
                                         FROM tenure.effects e
                                        WHERE e.job_id = job AND e.step_kind IN ('sleep', 'awaited')
                                          AND e.wakes_at >= since)));
END $$;

REVOKE ALL ON FUNCTION tenure.suspended_for(uuid, text, float8, timestamptz) FROM PUBLIC;
