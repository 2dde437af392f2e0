-- Enqueues a job in the caller's transaction. Returns its id; of a key that is taken, the holder's.
--
-- Programs call it: docs/sql.md, where its arguments and its errors are. A wrong argument raises TN003 with a hint.
-- It runs with the caller's rights: who may not insert a job may not enqueue one.
-- Two calls at once with one key: the second waits for the first one's transaction. If the answer is lost, a second
-- call with the same key finds the job.
CREATE OR REPLACE FUNCTION tenure.enqueue(queue text, kind text, payload jsonb DEFAULT 'null',
                                          unique_key text DEFAULT NULL,
                                          run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL,
                                          max_attempts int DEFAULT NULL, trace_context text DEFAULT NULL,
                                          lane text DEFAULT NULL, priority int DEFAULT NULL,
                                          not_after timestamptz DEFAULT NULL, on_expiry text DEFAULT NULL,
                                          replace text DEFAULT NULL, longest_wait interval DEFAULT NULL,
                                          unique_while_queued text DEFAULT NULL, unique_while_live text DEFAULT NULL,
                                          tags text[] DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fault   text[] := tenure.fault_in_job(queue, kind, payload, unique_key, run_at, delay, max_attempts);
    options jsonb;
BEGIN
    IF num_nonnulls(lane, priority, not_after, on_expiry, replace, longest_wait, unique_while_queued,
                    unique_while_live) > 0 THEN
        fault := coalesce(fault, tenure.fault_in_options(unique_key, delay, lane, priority, not_after, on_expiry,
                                                         replace, longest_wait, unique_while_queued,
                                                         unique_while_live));
        options := tenure.options_of(delay, lane, priority, not_after, on_expiry, replace, longest_wait,
                                     unique_while_queued, unique_while_live);
    END IF;
    IF cardinality(tags) > 0 THEN
        fault := coalesce(fault, tenure.fault_in_tags(tags));
        options := coalesce(options, '{}') || jsonb_build_object('tags', tags);
    END IF;
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'TN003', MESSAGE = fault[1], DETAIL = 'Nothing was enqueued.', HINT = fault[2];
    END IF;
    RETURN (tenure.create_jobs(ARRAY[queue], ARRAY[kind], ARRAY[coalesce(payload, 'null')], ARRAY[unique_key],
                               ARRAY[coalesce(run_at, clock_timestamp() + coalesce(delay, interval '0'))],
                               ARRAY[coalesce(max_attempts, 5)], ARRAY[tenure.valid_traceparent(trace_context)],
                               ARRAY[options]))[1];
END $$;

REVOKE ALL ON FUNCTION tenure.enqueue(text, text, jsonb, text, timestamptz, interval, int, text, text, int,
                                      timestamptz, text, text, interval, text, text, text[]) FROM PUBLIC;

COMMENT ON FUNCTION tenure.enqueue(text, text, jsonb, text, timestamptz, interval, int, text, text, int, timestamptz,
                                      text, text, interval, text, text, text[]) IS
'Enqueues a job in this transaction: it exists if and when that commits. Returns its id.
queue: 1 to 64 of A-Z a-z 0-9 _ -. kind: such names joined by dots. payload: at most
tenure.payload_bytes_max bytes (256 KiB).
unique_key: of two jobs of a queue with one key only the first is created; the second call returns its id.
unique_while_queued, unique_while_live: so, too, but only until that job has started, or has ended.
replace: as unique_while_queued, and that job gets this payload, and this time; longest_wait: since its first enqueue.
run_at, or delay: when it is due, at most ten years ahead. max_attempts: 1 to 1000 (5). trace_context: a W3C
traceparent.
lane: 1 to 256 bytes. priority: -100 to 100 within the lane, the lower, the sooner (0).
tags: at most 16 of 1 to 100 bytes without spaces and commas, such as customer=7.
not_after: it does not start later; on_expiry: dead_letter (or without it), or cancel.
Errors: TN003 invalid, TN004 queue full, 40001 begin again.';
