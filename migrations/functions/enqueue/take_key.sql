-- Takes a key that lasts as long as its job waits (scope `<queue>/queued`) or lives (`<queue>/live`). Returns the
-- holder: the new job, or an older one, which with `key_while` = 'replace' gets the new payload and time. NULL: other
-- transactions keep taking it. The caller creates the new job if that is the holder.
--
-- Called by `take_lasting_keys` (SQL) and enqueue_fresh.sql (the library).
-- SECURITY DEFINER: a producer may change no job. It gives a new payload to a queued job that was itself enqueued
-- with that key (`lasting`, which a producer cannot write), and to no other.
-- Two calls at once: the key's row lets one in at a time. An older holder that is queued stays locked until the
-- transaction ends: no worker starts it before.
CREATE OR REPLACE FUNCTION tenure.take_key(key_while text, of_scope text, of_key text, new_id uuid, new_payload jsonb,
                                           due timestamptz, longest interval) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    holder uuid;
BEGIN
    IF of_scope NOT LIKE '%/queued' AND of_scope NOT LIKE '%/live' THEN
        RAISE EXCEPTION '% is no scope of keys that end with their jobs', to_json(of_scope) USING ERRCODE = 'TN003';
    ELSIF EXISTS (SELECT FROM tenure.jobs j WHERE j.id = new_id)
       OR EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = new_id) THEN
        RAISE EXCEPTION 'job % exists already', new_id USING ERRCODE = 'unique_violation';
    END IF;
    PERFORM tenure.check_unseen_jobs(ARRAY[new_id]);
    FOR try IN 1..3 LOOP
        INSERT INTO tenure.job_keys (scope, key, job_id, lasting) VALUES (of_scope, of_key, new_id, true)
            ON CONFLICT (scope, key) DO NOTHING;
        IF FOUND THEN
            RETURN new_id;
        END IF;
        SELECT CASE WHEN k.lasting THEN k.job_id END INTO holder
          FROM tenure.job_keys k WHERE k.scope = of_scope AND k.key = of_key FOR UPDATE;
        -- Retention has removed it in between.
        CONTINUE WHEN NOT FOUND;
        IF key_while = 'live' THEN
            IF current_setting('transaction_isolation') <> 'read committed' THEN
                BEGIN
                    -- If the job has ended since the snapshot, this is refused (40001). The lock goes with the block,
                    -- or it would hold up the job's end. An end under way is not waited for: it may wait for this key.
                    PERFORM FROM tenure.jobs j WHERE j.id = holder FOR KEY SHARE SKIP LOCKED;
                    RAISE EXCEPTION USING ERRCODE = 'triggered_action_exception';
                EXCEPTION WHEN triggered_action_exception THEN
                END;
            END IF;
            PERFORM FROM tenure.jobs j WHERE j.id = holder;
        ELSE
            PERFORM FROM tenure.jobs j WHERE j.id = holder AND j.status = 'queued' FOR NO KEY UPDATE;
        END IF;
        IF FOUND THEN
            IF key_while = 'replace' THEN
                PERFORM tenure.replace_job(holder, new_payload, due, longest);
            END IF;
            RETURN holder;
        END IF;
        UPDATE tenure.job_keys k
           SET job_id = new_id, created_at = clock_timestamp(), ended_at = NULL, lasting = true
         WHERE k.scope = of_scope AND k.key = of_key;
        RETURN new_id;
    END LOOP;
    RETURN NULL;
END $$;

REVOKE ALL ON FUNCTION tenure.take_key(text, text, text, uuid, jsonb, timestamptz, interval) FROM PUBLIC;
