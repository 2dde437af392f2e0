-- note_waiting: what a scan has found out about the jobs and messages that measure.sql named.
--
--   $1 queues  $2 for how many seconds the oldest submission of each has waited; NULL: not known
--   $3 to $8 of what no live worker runs: queues, kinds, whether a live worker serves the queue, due jobs, submissions,
--            for how many seconds the oldest of them has waited
--   $9 for how many seconds this holds, if no other scan follows
--
-- The ages are differences of one clock: the servers' clocks may differ.
WITH locked AS MATERIALIZED (
    SELECT queue FROM tenure.queue_stats WHERE queue = ANY ($1::text[]) ORDER BY queue FOR UPDATE
), dated AS (
    UPDATE tenure.queue_stats s
       SET oldest_submitted_at = statement_timestamp() - o.age_s * interval '1 second'
      FROM unnest($1::text[], $2::float8[]) AS o (queue, age_s)
     WHERE s.queue = o.queue AND s.queue IN (SELECT queue FROM locked)
)
UPDATE tenure.scanner_state
   SET unserved = (SELECT jsonb_agg(jsonb_build_object('queue', queue, 'kind', kind, 'is_queue_served', is_queue_served,
                                                       'due', due, 'submitted', submitted,
                                                       'oldest_at', statement_timestamp() - age_s * interval '1 second')
                                    ORDER BY ord)
                     FROM unnest($3::text[], $4::text[], $5::bool[], $6::bigint[], $7::bigint[], $8::float8[])
                          WITH ORDINALITY AS u (queue, kind, is_queue_served, due, submitted, age_s, ord)),
       unserved_until = clock_timestamp() + $9::float8 * interval '1 second'
