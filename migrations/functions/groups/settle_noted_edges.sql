-- Settles edges of the jobs that have ended by these notes, and returns the jobs that wait for them.
--
--   followers: those to look at; or sole_followers: all of them, if each waits for one job alone, which has completed
--   failed_followers, hopeless_followers, steps: as `take_group_notes` says, by these edges
--   deferred_jobs: another transaction has locked something of them: they are noted anew
--   last_edge: the job and the follower up to which edges were found   has_more: there may be more edges
--   are_settled: false if another transaction has changed some of the edges that were found
--
-- Part of `release_followers`, with its rights and settings. It waits 100 ms for locked edges, and then goes on without
-- them.
CREATE OR REPLACE FUNCTION tenure.settle_noted_edges(notes bigint[], has_ends boolean, OUT followers uuid[],
    OUT sole_followers uuid[], OUT failed_followers uuid[], OUT hopeless_followers uuid[], OUT steps jsonb,
    OUT deferred_jobs uuid[], OUT last_edge uuid[], OUT has_more boolean, OUT are_settled boolean)
LANGUAGE plpgsql VOLATILE SET lock_timeout = '100ms' AS $$
DECLARE
    ends        record;
    edges       record;
    settled     record;
    locked_jobs uuid[];
    follow_one_job boolean;
BEGIN
    has_more := false;
    are_settled := true;
    IF NOT has_ends THEN
        RETURN;
    END IF;
    deferred_jobs := tenure.defer_redriven_jobs(notes);
    ends := tenure.read_group_ends(notes, deferred_jobs);
    FOR try IN 1..2 LOOP
        BEGIN
            edges := tenure.find_open_edges(ends.jobs, ends.fates, ends.sizes, ends.settled_to);
            IF try = 2 THEN
                SELECT l.places, l.locked_jobs INTO edges.places, locked_jobs
                  FROM tenure.lock_edges(edges.places, edges.befores) l;
            END IF;
            follow_one_job := 'completed' = ALL (ends.fates) AND tenure.follow_one_job(edges.afters);
            settled := tenure.settle_edges_at(edges.places, ends.jobs, ends.fates, ends.sizes);
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF try = 2 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
    IF locked_jobs IS NOT NULL THEN
        INSERT INTO tenure.group_ends (job_id, ended_as)
        SELECT e.job, e.fate FROM unnest(ends.jobs, ends.fates) AS e(job, fate) WHERE e.job = ANY (locked_jobs);
        deferred_jobs := deferred_jobs || locked_jobs;
    END IF;
    last_edge := ARRAY[edges.befores[cardinality(edges.befores)], edges.afters[cardinality(edges.afters)]];
    has_more := edges.has_more;
    are_settled := settled.n_of_settled >= coalesce(cardinality(edges.places), 0);
    failed_followers := settled.failed_followers;
    hopeless_followers := settled.hopeless_followers;
    steps := settled.steps;
    IF follow_one_job AND are_settled THEN
        sole_followers := settled.followers;
    ELSE
        followers := settled.followers;
    END IF;
END $$;

REVOKE ALL ON FUNCTION tenure.settle_noted_edges(bigint[], boolean) FROM PUBLIC;
