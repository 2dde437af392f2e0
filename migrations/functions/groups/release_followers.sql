-- Works off notes of `tenure.group_ends`, at most `most`: settles edges, and releases, cancels or restores the jobs
-- that follow others. Returns the released jobs, to be published, and a last row of NULLs if there is more to do.
--
-- src/groups/sql/release_followers.sql calls it: the worker that has ended a job, and the relay.
-- A lost answer loses no job: the relay finds that the messages of released jobs are missing.
-- SECURITY DEFINER: a worker may change neither edges nor followers. The parts run with these rights and settings.
-- Calls run side by side. Each statement sees what is committed when it begins, and the last transaction that settles
-- an edge of a follower leaves a note: the look after its commit finds all of them settled. Two looks that do find the
-- job held once. What another transaction has locked gets a note of its own and makes way.
-- Locks are taken in this order: notes, dead letters, edges, followers, jobs, places in lanes.
CREATE OR REPLACE FUNCTION tenure.release_followers(most int)
RETURNS TABLE (id uuid, queue text, kind text, dispatch int, clear_reason text, trace_context text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
    SET plan_cache_mode = force_generic_plan SET lock_timeout = '2s' AS $$
DECLARE
    notes    record;
    edges    record;
    verdicts record;
    steps    record;
    cancels  record;
    ready    uuid[];
    failed_followers   uuid[];
    hopeless_followers uuid[];
    has_looks boolean;
BEGIN
    notes := tenure.take_group_notes(most);
    IF notes.ids IS NULL THEN
        RETURN;
    END IF;
    edges := tenure.settle_noted_edges(notes.ids, notes.has_ends);
    failed_followers := notes.failed_followers || edges.failed_followers;
    hopeless_followers := notes.hopeless_followers || edges.hopeless_followers;
    verdicts := tenure.judge_followers(notes.followers || edges.followers, failed_followers, hopeless_followers);
    steps := tenure.judge_step_jobs(notes.steps, edges.steps);
    ready := verdicts.ready || edges.sole_followers;
    PERFORM tenure.restore_followers(verdicts.cancelled, ready);
    cancels := tenure.cancel_followers(verdicts.doomed, failed_followers, hopeless_followers);
    -- Another transaction may settle the last edges of a follower now, and not see those that this one has settled. And
    -- what a note has said of a failure may be over.
    INSERT INTO tenure.group_ends (job_id, ended_as)
    SELECT DISTINCT f.job_id, 'settled'
      FROM unnest(edges.followers || notes.failed_followers) AS f(job_id)
     WHERE (f.job_id IN (SELECT unnest(ready))) IS NOT TRUE
       AND (f.job_id IN (SELECT unnest(cancels.locked))) IS NOT TRUE;
    has_looks := FOUND;
    IF ready IS NOT NULL THEN
        RETURN QUERY SELECT r.* FROM tenure.release_held_jobs(ready, verdicts.cancelled) r;
    END IF;
    IF steps.woken IS NOT NULL THEN
        PERFORM tenure.wake_step_jobs(steps.woken, steps.noted_or_settled);
    END IF;
    PERFORM tenure.forget_settled_notes(notes.ids, edges.deferred_jobs, edges.last_edge, edges.has_more,
                                        edges.are_settled);
    IF cardinality(notes.ids) = most OR edges.has_more OR NOT edges.are_settled OR cancels.has_cancelled
       OR has_looks OR steps.has_looks
    THEN
        RETURN QUERY SELECT NULL::uuid, NULL::text, NULL::text, NULL::int, NULL::text, NULL::text;
    END IF;
END $$;

REVOKE ALL ON FUNCTION tenure.release_followers(int) FROM PUBLIC;
