-- Takes the unique keys of new jobs. Returns who holds each: the new job, or an older one; of a job without a key,
-- itself.
--
-- Called by `create_jobs` alone, with its rights, its search_path and its settings for plans. PUBLIC may execute it:
-- it has no right but the caller's.
-- Two calls with the same keys: the second waits for the first one's transaction. The keys are taken in order: two
-- producers would deadlock otherwise. In a transaction whose snapshot is older than the holder, it raises 40001.
CREATE OR REPLACE FUNCTION tenure.take_unique_keys(ids uuid[], queues text[], keys text[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    holders uuid[];
BEGIN
    FOR try IN 1..3 LOOP
        INSERT INTO tenure.job_keys (scope, key, job_id)
        SELECT u.queue, u.key, u.id
          FROM unnest(ids, queues, keys) AS u(id, queue, key)
         WHERE u.key IS NOT NULL
         ORDER BY u.queue, u.key
            ON CONFLICT (scope, key) DO NOTHING;
        holders := ARRAY(
            SELECT CASE WHEN u.key IS NULL THEN u.id
                        ELSE (SELECT k.job_id FROM tenure.job_keys k WHERE k.scope = u.queue AND k.key = u.key) END
              FROM unnest(ids, queues, keys) WITH ORDINALITY AS u(id, queue, key, n)
             ORDER BY u.n);
        -- A key whose holder is not there was purged in between.
        EXIT WHEN array_position(holders, NULL) IS NULL;
    END LOOP;
    IF array_position(holders, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'unique key % is held by a job that this transaction cannot see',
                        to_json(keys[array_position(holders, NULL)])
            USING ERRCODE = '40001', DETAIL = 'The transaction''s snapshot is older than that job.',
                  HINT = 'Roll back, and begin the transaction again.';
    END IF;
    RETURN holders;
END $$;

GRANT EXECUTE ON FUNCTION tenure.take_unique_keys(uuid[], text[], text[]) TO PUBLIC;
