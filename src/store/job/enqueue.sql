-- enqueue: create jobs, each at most once per key.
--
--   $1 ids  $2 queues  $3 kinds  $4 payloads (JSON text)  $5 max_attempts
--   $6 run_at or NULL  $7 delay in seconds or NULL  $8 trace contexts
--   $9 key scopes  $10 keys (NULL: no key)  $11, $12 of a submission: its message's sequence and time
--   $13 told: 'relay' (the relay shall publish), 'ticket' (the caller publishes dispatch 1 once this is
--       committed), 'message' (the message exists already: a submission)
--   $14 how long to wait for another transaction that is about to insert one of the keys, for example
--       '100ms'; NULL: the session's limit, as in a user's transaction
--   $15 rarer options (a JSON object, as text) or NULL: lane, priority, not_after or expires_in_s, expires_as, group_id,
--       tags (an array without duplicates), lasting_key with key_while ('queued', 'live' or 'replace': see tenure.take_key)
--       and longest_s
--
-- A job that waits for others is due at a time that never comes: see tenure.release_followers.
-- One row a created job. has_message is false for a job that is held in its lane, too. The key of an id without a row is
-- taken; held_keys.sql names its holder. That is a second statement because this one's snapshot may be older than the
-- insert that won.
-- Only the statement that inserted the key creates the job: the job's row may be gone long before its
-- last message is. Keys are inserted in order, or two producers with the same keys would deadlock.
-- Made of parts: `scripts/statement enqueue` prints it whole.
-- include job/parts/enqueue_fresh.sql
INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, trace_context,
                         dispatch, publish_at, published_at, lane, priority, not_after, expires_as, group_id)
SELECT id, queue, kind, payload::jsonb, max_attempts, due_at, trace_context,
       CASE WHEN has_message AND told = 'ticket' THEN 1 ELSE 0 END,
       CASE WHEN NOT has_message THEN due_at END,
       CASE WHEN has_message THEN clock_timestamp() END, lane, priority, expires_at, expires_as, group_id
  FROM fresh
RETURNING id, published_at IS NOT NULL AS has_message
