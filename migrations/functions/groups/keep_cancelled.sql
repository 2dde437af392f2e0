-- Lets followers stay cancelled that a failure has cancelled, also if the failed job is redriven. Returns those of
-- `ids` for which it has done so. A follower that is live, or was cancelled by a person, is not among them.
--
-- src/groups/sql/keep_cancelled.sql and `cancel` call it for jobs of which they have found no row.
-- SECURITY DEFINER: who may cancel a job may not change what it waits for.
-- It waits for a call of `release_followers` that brings such a follower back; the follower is live then, and its
-- caller cancels it as any job. A redrive (`reopen_edges`) locks followers in the same order: one waits for the other,
-- and there is no deadlock.
CREATE OR REPLACE FUNCTION tenure.keep_cancelled(ids uuid[]) RETURNS SETOF uuid
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
    WITH cancelled AS MATERIALIZED (
        SELECT f.job_id FROM tenure.followers f
         WHERE f.job_id = ANY (ids) AND f.cut_at IS NOT NULL
           AND EXISTS (SELECT FROM tenure.job_history h WHERE h.id = f.job_id AND h.status = 'cancelled')
         ORDER BY f.job_id
           FOR NO KEY UPDATE
    )
    UPDATE tenure.followers f SET cut_at = NULL FROM cancelled c WHERE f.job_id = c.job_id
    RETURNING f.job_id;
$$;

REVOKE ALL ON FUNCTION tenure.keep_cancelled(uuid[]) FROM PUBLIC;
