-- Releases the first jobs of these lanes, by turn, and moves each lane on: it keeps a place in the line if it has
-- more jobs that may go, or gets a time to be looked at again.
--
--   of: the queue   line: the lanes   room: how many jobs may go   moment: the time of this call of `admit`
--
-- Called by `admit` alone, with its rights, its search_path and its settings for plans; the caller has locked the
-- lanes and, if the queue has a rate of its own, the queue's settings.
-- One statement: what a lane has released and where it stands next come from the same look. A job that another
-- transaction has locked is passed over: it may be cancelled, or get another payload. Those chosen beyond the room
-- stand in for it.
CREATE OR REPLACE FUNCTION tenure.release_jobs(of text, line text[], room bigint, moment timestamptz)
RETURNS TABLE (id uuid, queue text, kind text, dispatch int, clear_reason text, trace_context text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    never CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    spare CONSTANT bigint := CASE WHEN room > 0 THEN 16 ELSE 0 END;
BEGIN
    RETURN QUERY
    WITH offer AS MATERIALIZED (
        SELECT * FROM tenure.offered_jobs(of, line, room, moment)
    ), chosen AS MATERIALIZED (
        SELECT o.lane, o.job_id, o.turn + (o.n - 1) * o.pace AS at, o.n
          FROM offer o
         WHERE o.may_go
         ORDER BY at, o.lane, o.n
         LIMIT room + spare
    ), got AS MATERIALIZED (
        SELECT j.id
          FROM chosen c JOIN tenure.jobs j ON j.id = c.job_id
         WHERE j.publish_at = never
         ORDER BY c.at, c.lane, c.n
         LIMIT room
           FOR NO KEY UPDATE OF j SKIP LOCKED
    ), taken AS (
        DELETE FROM tenure.lane_jobs w
         WHERE w.job_id = ANY (ARRAY(SELECT job_id FROM chosen))
           AND (w.job_id = ANY (ARRAY(SELECT id FROM got))
                OR NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = w.job_id AND j.publish_at = never))
        RETURNING w.job_id
    ), released AS (
        UPDATE tenure.jobs j
           SET dispatch = j.dispatch + 1, scheduled_at = moment, publish_at = NULL, published_at = clock_timestamp()
         WHERE j.id = ANY (ARRAY(SELECT id FROM got))
        RETURNING j.id, j.queue, j.kind, j.dispatch, j.clear_reason, j.trace_context, j.fencing_token,
                  -- It runs no more: the claim refuses it.
                  coalesce(j.not_after <= moment, false) AS is_late
    ), slots AS (
        INSERT INTO tenure.lane_slots AS sl (queue, lane, job_id, fencing_token)
        SELECT of, c.lane, r.id, r.fencing_token FROM released r JOIN chosen c ON c.job_id = r.id WHERE NOT r.is_late
            ON CONFLICT (queue, lane, job_id) DO UPDATE SET fencing_token = excluded.fencing_token
    ), served AS (
        SELECT o.lane, o.turn, o.pace, o.free, o.tokens, o.rate, count(t.job_id) AS jobs,
               count(r.id) FILTER (WHERE NOT r.is_late) AS starts,
               count(*) FILTER (WHERE o.is_due) AS offers,
               -- Its first jobs are locked: others are not to wait behind it.
               count(*) FILTER (WHERE (SELECT count(*) FROM got) < room AND o.job_id IN (SELECT job_id FROM chosen)) > 0
                   AND count(t.job_id) = 0 AS is_stuck,
               min(o.due_at) FILTER (WHERE o.due_at > moment) AS next_due_at
          FROM offer o
          LEFT JOIN taken t ON t.job_id = o.job_id
          LEFT JOIN released r ON r.id = o.job_id
         GROUP BY o.lane, o.turn, o.pace, o.free, o.tokens, o.rate
    ), after AS (
        SELECT v.lane, v.starts, v.turn + v.starts * v.pace AS passed, v.tokens - v.starts AS tokens,
               v.offers > v.jobs AND coalesce(v.free > v.starts, true) AND NOT v.is_stuck AS waits,
               CASE WHEN v.is_stuck THEN moment + interval '100 milliseconds'
                    WHEN v.offers <= v.jobs THEN v.next_due_at
                    WHEN v.tokens - v.starts < 1 AND coalesce(v.free > v.starts, true)
                    THEN moment + interval '1 second' * greatest(0.01, (1 - (v.tokens - v.starts)) / v.rate)
               END AS next_at
          FROM served v
    ), moved AS (
        UPDATE tenure.lanes l
           SET passed = CASE WHEN a.starts > 0 THEN a.passed ELSE l.passed END,
               turn = CASE WHEN a.waits AND coalesce(a.tokens >= 1, true) THEN a.passed END,
               tokens = a.tokens, refilled_at = CASE WHEN a.tokens IS NOT NULL THEN moment END, next_at = a.next_at
          FROM after a
         WHERE l.queue = of AND l.lane = a.lane
           AND (a.starts > 0 OR a.tokens IS NOT NULL OR l.next_at IS DISTINCT FROM a.next_at
                OR (l.turn IS NOT NULL) <> a.waits)
    ), spent AS (
        UPDATE tenure.lane_settings l SET tokens = l.tokens - (SELECT count(*) FROM released r WHERE NOT r.is_late)
         WHERE l.queue = of AND l.queue_rate IS NOT NULL
    )
    SELECT r.id, r.queue, r.kind, r.dispatch, r.clear_reason, r.trace_context
      FROM chosen c JOIN released r ON r.id = c.job_id
     ORDER BY c.at, c.lane, c.n;
END $$;

REVOKE ALL ON FUNCTION tenure.release_jobs(text, text[], bigint, timestamptz) FROM PUBLIC;
