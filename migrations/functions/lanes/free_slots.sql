-- Frees the slots of jobs that have ended: of those in `ended`, or, if that is NULL, of any job of these lanes. A
-- released job that ended before a worker took it leaves its token unused: it goes back to its lane. Returns how many
-- such jobs there were, for the queue's own tokens.
--
-- Called by `admit` alone, with its rights, its search_path and its settings for plans; the caller has locked the
-- lanes. A slot is judged by its job's row: another call that frees it finds the same, and deletes nothing.
CREATE OR REPLACE FUNCTION tenure.free_slots(of text, lanes text[], ended uuid[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    never        CONSTANT timestamptz := '9999-01-01 00:00:00+00';
    freed_lanes  text[];
    freed_jobs   uuid[];
    freed_tokens bigint[];
    unused       text[];
BEGIN
    WITH freed AS (
        DELETE FROM tenure.lane_slots sl
         WHERE sl.queue = of AND sl.lane = ANY (free_slots.lanes) AND (ended IS NULL OR sl.job_id = ANY (ended))
           AND NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.id = sl.job_id AND j.publish_at IS DISTINCT FROM never)
        RETURNING sl.lane, sl.job_id, sl.fencing_token
    )
    SELECT array_agg(f.lane), array_agg(f.job_id), array_agg(f.fencing_token) INTO freed_lanes, freed_jobs, freed_tokens
      FROM freed f;
    IF NOT EXISTS (SELECT FROM tenure.lane_settings s
                    WHERE s.queue = of AND (s.rate IS NOT NULL OR s.queue_rate IS NOT NULL)) THEN
        RETURN 0;
    END IF;
    unused := ARRAY(
        SELECT f.lane FROM unnest(freed_lanes, freed_jobs, freed_tokens) AS f(lane, job_id, fencing_token)
         WHERE EXISTS (SELECT FROM tenure.job_history h
                        WHERE h.id = f.job_id AND h.claim_id IS NULL AND h.fencing_token = f.fencing_token)
            OR EXISTS (SELECT FROM tenure.dead_letter_jobs d
                        WHERE d.id = f.job_id AND d.claim_id IS NULL AND d.fencing_token = f.fencing_token));
    IF unused = '{}' THEN
        RETURN 0;
    END IF;
    UPDATE tenure.lanes l SET tokens = l.tokens + u.jobs
      FROM (SELECT lane, count(*) AS jobs FROM unnest(unused) AS lane GROUP BY lane) u
     WHERE l.queue = of AND l.lane = u.lane;
    RETURN cardinality(unused);
END $$;

REVOKE ALL ON FUNCTION tenure.free_slots(text, text[], uuid[]) FROM PUBLIC;
