-- Settles the edges of jobs that this transaction has completed, gives each a copy of its job's output, and notes the
-- jobs that wait for them. Of a job with more than ten followers it notes the end alone: `release_followers` goes
-- through them by parts, as they would hold up the other jobs of the batch. Returns true.
--
--   jobs: sorted   outputs: theirs, in the same order; NULL: they have none
--
-- src/store/job/parts/complete_edges.sql calls it, having set `tenure.completes` to `settled`: until this function
-- ends, the trigger `note_group_end` notes nothing of running jobs.
-- SECURITY DEFINER: a worker may change no edges. Its settings keep its plans from depending on statistics.
-- Two at once change different edges, and lock no follower. What they write is seen with their notes.
CREATE OR REPLACE FUNCTION tenure.settle_edges(jobs uuid[], outputs jsonb[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
    SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    edges_at_once CONSTANT int := 10;
    befores       uuid[];
    places        tid[];
    large_jobs    uuid[];
    noted_jobs    uuid[];
    n_of_settled  bigint;
BEGIN
    -- Found once, and then changed by their places: a second look by their keys takes as long as the change. An edge
    -- that another transaction has changed meanwhile has another place: the next round finds it.
    LOOP
        SELECT array_agg(u.id), array_agg(d.place) INTO befores, places
          FROM unnest(jobs) AS u(id)
         CROSS JOIN LATERAL (
               SELECT d.ctid AS place FROM tenure.job_edges d
                WHERE d.before = u.id AND (d.state IS NULL OR d.state <> 'completed')
                LIMIT edges_at_once + 1) d
         WHERE (u.id IN (SELECT unnest(noted_jobs))) IS NOT TRUE;
        EXIT WHEN places IS NULL;
        -- The edges of one job stand together, as the jobs are gone through one by one: a job has more than ten if an
        -- edge and the tenth after it are both its own.
        large_jobs := ARRAY(SELECT DISTINCT befores[i]
                              FROM generate_series(edges_at_once + 1, cardinality(befores)) AS i
                             WHERE befores[i] = befores[i - edges_at_once]);
        IF cardinality(large_jobs) > 0 THEN
            INSERT INTO tenure.group_ends (job_id, ended_as) SELECT l.id, 'completed' FROM unnest(large_jobs) AS l(id);
            noted_jobs := noted_jobs || large_jobs;
            CONTINUE;
        END IF;
        WITH settled AS (
            UPDATE tenure.job_edges d
               SET state = 'completed', ended_at = clock_timestamp(),
                   output = outputs[width_bucket(d.before, jobs)]
             WHERE d.ctid = ANY (places)
            RETURNING d.after, d.step
        ), noted AS (
            INSERT INTO tenure.group_ends (job_id, ended_as, step)
            SELECT DISTINCT s.after, 'settled', s.step FROM settled s
        )
        SELECT count(*) INTO n_of_settled FROM settled;
        EXIT WHEN n_of_settled >= cardinality(places);
    END LOOP;
    PERFORM set_config('tenure.completes', 'on', true);
    RETURN true;
END $$;

REVOKE ALL ON FUNCTION tenure.settle_edges(uuid[], jsonb[]) FROM PUBLIC;
