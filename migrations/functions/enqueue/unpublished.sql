-- Hands the relay jobs whose publication failed, or whose message no worker keeps; returns their ids.
--
--   dispatches: the dispatch of each message that was not published   seconds: when the relay tries, at most an hour
--
-- src/store/recover/unpublished.sql calls it.
-- SECURITY DEFINER: a producer may change no job. By it a producer can have a queued job published again, or an hour
-- later.
-- Only while the job waits for that very message: a relay may have been faster, or the message arrived after all and a
-- worker has claimed the job. Rows are locked in order of id, as claims lock them. A second call finds nothing.
CREATE OR REPLACE FUNCTION tenure.unpublished(ids uuid[], dispatches int[], seconds float8) RETURNS SETOF uuid
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
    WITH waiting AS MATERIALIZED (
        SELECT j.id
          FROM unnest(ids, dispatches) AS u(id, dispatch)
          JOIN tenure.jobs j ON j.id = u.id
         WHERE j.id = ANY (ids) AND j.dispatch = u.dispatch AND j.status = 'queued' AND j.publish_at IS NULL
         ORDER BY j.id
           FOR NO KEY UPDATE OF j
    )
    UPDATE tenure.jobs j
       SET publish_at = clock_timestamp() + least(greatest(seconds, 0), 3600) * interval '1 second', published_at = NULL
      FROM waiting
     WHERE j.id = waiting.id AND j.id = ANY (ARRAY(SELECT id FROM waiting))
    RETURNING j.id
$$;

REVOKE ALL ON FUNCTION tenure.unpublished(uuid[], int[], float8) FROM PUBLIC;
