-- suspects: the queues in which a due job has counted as published for some time, but no worker has claimed it. Its
-- message may wait behind others, or be lost.
--
--   $1 seconds  $2 queues, in this order  $3 row limit
--
-- Apart from published_queues.sql: in one statement, of a large table without statistics, the cost that the planner
-- expects is above jit_above_cost, and compiling it takes 30 ms of a processor each second.
SELECT named.queue,
       coalesce((SELECT q.paused_at IS NOT NULL FROM tenure.queues q WHERE q.queue = named.queue), false) AS paused,
       coalesce((SELECT q.max_running IS NOT NULL FROM tenure.queues q WHERE q.queue = named.queue), false) AS limited
  FROM unnest($2::text[]) AS named(queue)
 -- Usually the newest of the jobs published at least `$1` seconds ago waits, or none of them does. This condition alone
 -- finds it by its index; with the rest, the server may read and sort all jobs of a queue for the one.
 WHERE coalesce((SELECT j.status = 'queued' AND j.scheduled_at <= statement_timestamp()
                   FROM tenure.jobs j
                  WHERE j.queue = named.queue
                    AND j.published_at < statement_timestamp() - $1::float8 * interval '1 second'
                  ORDER BY j.queue DESC, j.published_at DESC LIMIT 1), false)
    OR coalesce((SELECT true
                   FROM tenure.jobs j
                  WHERE j.queue = named.queue
                    AND j.published_at < statement_timestamp() - $1::float8 * interval '1 second'
                    AND j.status = 'queued' AND j.scheduled_at <= statement_timestamp()
                  ORDER BY j.queue, j.published_at LIMIT 1), false)
 LIMIT $3
