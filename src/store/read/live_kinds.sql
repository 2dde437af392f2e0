-- live_kinds: the numbers of live jobs by queue and kind. Reads the table of live jobs as a whole.
--
--   $1 row limit
SELECT queue, kind,
       count(*) FILTER (WHERE status = 'queued' AND scheduled_at <= statement_timestamp()) AS due,
       count(*) FILTER (WHERE status = 'queued' AND scheduled_at > statement_timestamp()
                                                AND scheduled_at < '9998-01-01 00:00:00+00') AS scheduled,
       count(*) FILTER (WHERE status = 'queued' AND scheduled_at >= '9998-01-01 00:00:00+00') AS held,
       count(*) FILTER (WHERE status = 'processing') AS processing
  FROM tenure.jobs
 GROUP BY queue, kind
 ORDER BY count(*) DESC, queue, kind
 LIMIT $1
