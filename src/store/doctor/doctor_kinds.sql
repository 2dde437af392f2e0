-- doctor_kinds: the kinds that wait, due or as submissions, and whether a live worker runs them. Reads the table of live
-- jobs as a whole.
--
--   $1 queues  $2 kinds  $3 messages: how many the stream holds of each; NULL: NATS did not answer
--   $4 queues to look at, or NULL for all
--
-- One row a kind, those without a worker first; at most 1,000.
-- include recover/parts/waiting.sql
SELECT queue, kind, due, submitted, oldest_due_s, is_queue_served, is_served
  FROM waiting
 WHERE $4::text[] IS NULL OR queue = ANY ($4::text[])
 ORDER BY is_served, due + coalesce(submitted, 0) DESC, queue, kind
 LIMIT 1000
