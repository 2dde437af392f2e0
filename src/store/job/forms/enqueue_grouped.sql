-- enqueue_grouped: enqueue.sql for jobs of groups.
--
-- The parameters and the answer are those of enqueue.sql; an option `group_id` names the job's group. A form of its own,
-- because a role may write that column only since postgres/roles.sql was run again. A job that waits for others is due
-- at a time that never comes: see release_followers.sql.
-- Made of parts: `scripts/statement enqueue_grouped` prints it whole.
-- include job/parts/enqueue_fresh.sql
INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, trace_context,
                         dispatch, publish_at, published_at, lane, priority, not_after, expires_as, group_id)
SELECT id, queue, kind, payload::jsonb, max_attempts, due_at, trace_context,
       CASE WHEN has_message AND told = 'ticket' THEN 1 ELSE 0 END,
       CASE WHEN NOT has_message THEN due_at END,
       CASE WHEN has_message THEN clock_timestamp() END, lane, priority, not_after, expires_as,
       (options::jsonb ->> 'group_id')::uuid
  FROM fresh
RETURNING id, published_at IS NOT NULL AS has_message
