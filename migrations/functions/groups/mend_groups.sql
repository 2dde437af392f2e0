-- Looks for ends that no note tells of, and notes them: of a job that an older program has redriven or ended, of a dead
-- letter that was purged, and of a follower whose edges are settled but that is still held. Looks at the followers
-- after this one, in order of id: at `most`, or at as many as have 5,000 edges. Returns the last one, or NULL after the
-- end.
--
-- src/groups/sql/mend_groups.sql calls it: the worker with the turn, from the start again after the end.
-- A lost answer costs a second look. Each call sees at most 10,000 edges, and 5,000 of one follower: of a follower with
-- 200,000 edges, forty rounds see all.
-- SECURITY DEFINER: a worker may write neither notes nor edges.
-- A note too many does no harm: the look that it asks for decides. So two calls at once may note the same end twice. It
-- passes over edges that are locked: a redrive that holds edges may wait for a follower that this call has changed.
CREATE OR REPLACE FUNCTION tenure.mend_groups(after_follower uuid, most int) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    never         CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    edges_at_once CONSTANT int := 5000;
    last_follower uuid;
    followers     uuid[];
    noted_jobs    uuid[];
    looked_at     tid[];
    first_id      bigint;
BEGIN
    -- Those that are still to start, or may come back.
    SELECT CASE WHEN count(*) >= most OR sum(p.n_of_edges) >= edges_at_once
                THEN (array_agg(p.job_id ORDER BY p.job_id DESC))[1] END,
           array_agg(p.job_id) FILTER (WHERE p.is_of_use)
      INTO last_follower, followers
      FROM (SELECT e.job_id, e.is_of_use, count(*) AS n_of_edges
              FROM (SELECT f.job_id, f.is_of_use
                      FROM (SELECT f.job_id,
                                   f.cut_at IS NOT NULL
                                   OR (SELECT true FROM tenure.jobs j WHERE j.id = f.job_id) IS NOT NULL AS is_of_use
                              FROM tenure.followers f
                             WHERE f.job_id > after_follower ORDER BY f.job_id LIMIT most) f
                      LEFT JOIN LATERAL (SELECT FROM tenure.job_edges d
                                          WHERE f.is_of_use AND d.after = f.job_id LIMIT edges_at_once) d ON true
                     ORDER BY f.job_id LIMIT edges_at_once) e
             GROUP BY e.job_id, e.is_of_use) p;
    -- One that could not come back when the last job before it had completed: that end is told once more.
    WITH reopened AS (
        UPDATE tenure.job_edges d SET state = NULL
         WHERE (d.after, d.n) IN (
               SELECT f.job_id, (SELECT max(e.n) FROM tenure.job_edges e WHERE e.after = f.job_id AND e.step IS NULL)
                 FROM tenure.followers f
                WHERE f.job_id = ANY (followers) AND f.cut_at IS NOT NULL
                  AND EXISTS (SELECT FROM tenure.job_history h WHERE h.id = f.job_id AND h.status = 'cancelled')
                  AND NOT EXISTS (SELECT FROM tenure.job_edges e
                                   WHERE e.after = f.job_id AND e.step IS NULL
                                     AND (e.state IS NULL OR e.state <> 'completed')))
        RETURNING d.before
    )
    INSERT INTO tenure.group_ends (job_id, ended_as) SELECT before, 'completed' FROM reopened;
    looked_at := tenure.edges_to_mend(followers);
    -- Opens the edges of a failed job that is live again.
    UPDATE tenure.job_edges d SET state = NULL, ended_at = NULL
     WHERE d.ctid = ANY (ARRAY(SELECT o.ctid FROM tenure.job_edges o
                                WHERE o.ctid = ANY (looked_at) AND o.state = 'failed'
                                  AND (SELECT true FROM tenure.jobs j WHERE j.id = o.before) IS NOT NULL
                                  FOR NO KEY UPDATE SKIP LOCKED));
    -- Once: the table has no index by job.
    first_id := tenure.first_note();
    noted_jobs := ARRAY(SELECT g.job_id FROM tenure.group_ends g WHERE g.id >= first_id);
    INSERT INTO tenure.group_ends (job_id, ended_as)
    WITH not_live AS MATERIALIZED (
        SELECT DISTINCT d.before, d.state FROM tenure.job_edges d
         WHERE d.ctid = ANY (looked_at) AND (d.state IS NULL OR d.state = 'failed')
           AND (SELECT true FROM tenure.jobs j WHERE j.id = d.before) IS NULL
           AND (d.before IN (SELECT unnest(noted_jobs))) IS NOT TRUE
    )
    SELECT e.before, e.ended_as
      FROM (SELECT o.before, o.state,
                   coalesce((SELECT h.status FROM tenure.job_history h WHERE h.id = o.before),
                            CASE WHEN EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = o.before) THEN 'failed'
                                 WHEN o.state = 'failed' THEN 'purged'
                                 ELSE 'completed' END) AS ended_as
              -- Looked up once, and not in the condition, too.
              FROM not_live o OFFSET 0) e
     WHERE e.state IS DISTINCT FROM e.ended_as;
    -- One that no look has found.
    INSERT INTO tenure.group_ends (job_id, ended_as)
    SELECT j.id, 'settled'
      FROM tenure.followers f
      JOIN tenure.jobs j ON j.id = f.job_id
     WHERE f.job_id = ANY (followers) AND f.cut_at IS NULL AND j.status = 'queued' AND j.fencing_token = 0
       AND (j.publish_at = never) IS TRUE
       -- One that was redriven waits for a failed job on purpose. The first look is where one was open before.
       AND CASE WHEN EXISTS (SELECT FROM tenure.job_edges e
                              WHERE e.after = f.job_id AND e.n = f.open_n AND e.step IS NULL AND e.state IS NULL)
                THEN false
                ELSE NOT EXISTS (SELECT FROM tenure.job_edges e
                                  WHERE e.after = f.job_id AND e.step IS NULL
                                    AND (e.state IS NULL OR e.state = 'failed' AND f.on_failure <> 'run')) END
       -- It is released, and waits for its lane.
       AND NOT EXISTS (SELECT FROM tenure.lane_jobs l WHERE l.job_id = j.id AND l.due_at < never)
       AND (j.id IN (SELECT unnest(noted_jobs))) IS NOT TRUE;
    RETURN last_follower;
END $$;

REVOKE ALL ON FUNCTION tenure.mend_groups(uuid, int) FROM PUBLIC;
