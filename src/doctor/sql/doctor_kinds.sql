-- doctor_kinds: the kinds that wait, due or as submissions, and whether a live worker runs them. Reads the table of live
-- jobs as a whole.
--
--   $1 queues  $2 kinds  $3 messages  $4 jobs: what the stream holds of each; NULL: NATS did not answer
--   $5 queues to look at, or NULL for all
--
-- One row a kind, those without a worker first; at most 1,000.
-- Made of parts: `scripts/statement doctor_kinds` prints it whole.
-- include recover/parts/waiting.sql
SELECT queue, kind, due, submitted, messages, has_several, oldest_due_s, put_off, put_off_s,
       is_queue_served, is_served
  FROM waiting
 WHERE $5::text[] IS NULL OR queue = ANY ($5::text[])
 ORDER BY is_served, due + coalesce(submitted, 0) DESC, queue, kind
 LIMIT 1000
