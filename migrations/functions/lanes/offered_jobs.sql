-- Lists what each of these lanes may release: the part of `release_jobs` that only reads.
--
--   of: the queue   line: the lanes, which the caller has locked   room: how many jobs may go in all
--   moment: the time of this call of `admit`
--
-- One row for each job that a lane offers, or one without a job. `pace`: how far a job moves its lane on in the line.
-- `free`: slots, and `tokens`: NULL without a limit or a rate. `n`: the job's place in its lane. `is_due`: it waits for
-- its lane's turn alone. `may_go`: it is due, and within the lane's limits.
-- Each lane offers twice its share, or one call would read a long line whole; and one job more, which says whether it
-- stays in the line. A lane that had few turns may have several of them.
--
-- LANGUAGE sql, STABLE and without settings of its own, so that Postgres plans it as a part of the statement that
-- calls it, and it reads that statement's snapshot. It runs with the rights, the search_path and the plan settings of
-- `admit`.
CREATE OR REPLACE FUNCTION tenure.offered_jobs(of text, line text[], room bigint, moment timestamptz)
RETURNS TABLE (lane text, turn float8, pace float8, free bigint, tokens float8, rate float8, job_id uuid,
               due_at timestamptz, n bigint, is_due boolean, may_go boolean)
LANGUAGE sql STABLE AS $$
    WITH s AS MATERIALIZED (
        -- Turns count on from the clock whenever the line is empty.
        SELECT coalesce((SELECT min(turn) FROM tenure.lanes WHERE queue = of AND turn IS NOT NULL),
                        extract(epoch FROM moment) - 1700000000) AS first_turn,
               coalesce(s.ordered, false) AS ordered, s.running, s.rate, s.burst
          FROM (SELECT) one LEFT JOIN tenure.lane_settings s ON s.queue = of
    ), lane AS MATERIALIZED (
        -- A lane that joins the line owes no more than its last turn: those that it had while the others were away are
        -- not held against it.
        SELECT l.lane, coalesce(l.turn, greatest(s.first_turn, least(l.passed, s.first_turn + p.pace))) AS turn, p.pace,
               CASE WHEN s.ordered THEN 1 ELSE coalesce(l.running, s.running) END
                 - (SELECT count(*) FROM tenure.lane_slots sl WHERE sl.queue = of AND sl.lane = l.lane) AS free,
               CASE WHEN s.rate IS NOT NULL THEN
                   least(greatest(0, s.burst - (SELECT count(*) FROM tenure.lane_slots sl
                                                  JOIN tenure.jobs j ON j.id = sl.job_id AND j.status = 'queued'
                                                                    AND j.published_at IS NOT NULL
                                                 WHERE sl.queue = of AND sl.lane = l.lane)),
                         coalesce(l.tokens + s.rate * greatest(0, extract(epoch FROM moment - l.refilled_at)), s.burst))
               END AS tokens, s.rate, s.ordered
          FROM tenure.lanes l
         CROSS JOIN LATERAL (SELECT 0.00001::float8 / coalesce(l.weight, 1) AS pace) p
         CROSS JOIN s
         WHERE l.queue = of AND l.lane = ANY (line)
    )
    SELECT l.lane, l.turn, l.pace, l.free, l.tokens, l.rate, w.job_id, w.due_at, w.n,
           w.due_at <= moment AND (w.n = 1 OR NOT l.ordered),
           w.due_at <= moment AND w.n <= coalesce(l.free, w.n) AND w.n <= coalesce(l.tokens, w.n)
      FROM lane l
      LEFT JOIN LATERAL (
           SELECT f.job_id, f.due_at, row_number() OVER (ORDER BY f.priority, f.place, f.arrival) AS n
             FROM (SELECT * FROM tenure.lane_jobs w
                    WHERE w.queue = of AND w.lane = l.lane AND w.place IS NOT NULL
                    ORDER BY w.priority, w.place, w.arrival
                    LIMIT 1 + greatest(0, least(l.free, floor(l.tokens), 1 + 2 * room / cardinality(line)))) f
         ) w ON true
$$;

REVOKE ALL ON FUNCTION tenure.offered_jobs(text, text[], bigint, timestamptz) FROM PUBLIC;
