-- note_waiting: what has been found out about the jobs and messages that measure.sql named.
--
--   $1 queues with submissions; NULL: NATS did not answer  $2 how many of each
--   $3 for how many seconds the oldest of each has waited; NULL: not known
--   $4 how many of them stand in the stream, as far as they were read  $5 at how many deliveries  $6 of which consumer;
--      NULL: not read
--   $7 to $12 of what no live worker runs: queues, kinds, whether a live worker serves the queue, due jobs, submissions,
--             for how many seconds the oldest of them has waited
--   $13 for how many seconds this holds, if no other scan follows
--   $14 beside $7: how many jobs were put off, of a kind that a live worker runs; else NULL
--   $15 messages whose subject names no valid queue or kind  $16 one such subject; both NULL: NATS did not answer
--
-- A queue that is not named has no submission, and no date of one. The ages are differences of one clock: the servers'
-- clocks may differ.
WITH found AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::float8[], $4::bigint[], $5::bigint[], $6::text[])
               AS f (queue, submitted, age_s, standing, standing_deliveries, standing_of)
), put AS (
    INSERT INTO tenure.queue_stats AS s (queue, due, scheduled, processing, submitted, submitted_until,
                                         oldest_submitted_at, standing, standing_deliveries, standing_of, standing_until)
    SELECT queue, 0, 0, 0, CASE WHEN $1::text[] IS NOT NULL THEN coalesce(f.submitted, 0) END, until.at,
           statement_timestamp() - f.age_s * interval '1 second',
           f.standing, f.standing_deliveries, f.standing_of, CASE WHEN f.standing IS NOT NULL THEN until.at END
      FROM (SELECT queue FROM tenure.queue_stats UNION SELECT queue FROM found) names
      LEFT JOIN found f USING (queue)
     CROSS JOIN (SELECT clock_timestamp() + $13::float8 * interval '1 second' AS at OFFSET 0) until
     ORDER BY queue
        ON CONFLICT (queue) DO UPDATE
       SET submitted = excluded.submitted, submitted_until = excluded.submitted_until,
           oldest_submitted_at = excluded.oldest_submitted_at, standing = excluded.standing,
           standing_deliveries = excluded.standing_deliveries, standing_of = excluded.standing_of,
           standing_until = excluded.standing_until
)
UPDATE tenure.scanner_state
   SET unserved = (SELECT jsonb_agg(jsonb_build_object('queue', queue, 'kind', kind, 'is_queue_served', is_queue_served,
                                                       'due', due, 'submitted', submitted, 'put_off', put_off,
                                                       'oldest_at', statement_timestamp() - age_s * interval '1 second')
                                    ORDER BY ord)
                     FROM unnest($7::text[], $8::text[], $9::bool[], $10::bigint[], $11::bigint[], $12::float8[], $14::bigint[])
                          WITH ORDINALITY AS u (queue, kind, is_queue_served, due, submitted, age_s, put_off, ord)),
       misnamed = $15, misnamed_subject = $16,
       unserved_until = clock_timestamp() + $13::float8 * interval '1 second'
