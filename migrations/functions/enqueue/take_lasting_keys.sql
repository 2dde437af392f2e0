-- Takes the keys of new jobs that last as long as their jobs wait or live (`unique_while_queued`,
-- `unique_while_live`, `replace`). Returns `holders` with the holder of each such key. Of several jobs with one key,
-- the last one that replaces counts, or else the first.
--
-- Called by `create_jobs` alone, with its rights, its search_path and its settings for plans. PUBLIC may execute it:
-- it has no right but the caller's. `take_key`, which changes the holder of a key, has those of the schema's owner.
-- Two calls with the same keys: `take_key` waits. The keys are taken in order: two producers would deadlock
-- otherwise.
CREATE OR REPLACE FUNCTION tenure.take_lasting_keys(ids uuid[], holders uuid[], queues text[], payloads jsonb[],
                                                    due timestamptz[], options jsonb[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    holder uuid;
    place  int;
    of     record;
BEGIN
    FOR of IN
        SELECT DISTINCT ON (k.scope, k.key) k.*, array_agg(k.n) OVER (PARTITION BY k.scope, k.key) AS places
          FROM (SELECT u.n, u.id, u.payload, u.due_at, u.job ->> 'lasting_key' AS key,
                       u.job ->> 'key_while' AS key_while,
                       (u.job ->> 'longest_s')::float8 * interval '1 second' AS longest,
                       u.queue || CASE u.job ->> 'key_while' WHEN 'live' THEN '/live' ELSE '/queued' END AS scope
                  FROM unnest(ids, queues, payloads, due, options) WITH ORDINALITY
                       AS u(id, queue, payload, due_at, job, n)
                 WHERE u.job ? 'lasting_key') k
         ORDER BY k.scope, k.key, k.key_while = 'replace' DESC,
                  CASE WHEN k.key_while = 'replace' THEN -k.n ELSE k.n END
    LOOP
        holder := tenure.take_key(of.key_while, of.scope, of.key, of.id, of.payload, of.due_at, of.longest);
        IF holder IS NULL THEN
            RAISE EXCEPTION 'key % is being taken by other transactions', to_json(of.key)
                USING ERRCODE = '40001', DETAIL = 'Nothing was enqueued.',
                      HINT = 'Roll back, and begin the transaction again.';
        END IF;
        FOREACH place IN ARRAY of.places LOOP
            holders[place] := holder;
        END LOOP;
    END LOOP;
    RETURN holders;
END $$;

GRANT EXECUTE ON FUNCTION tenure.take_lasting_keys(uuid[], uuid[], text[], jsonb[], timestamptz[], jsonb[]) TO PUBLIC;
