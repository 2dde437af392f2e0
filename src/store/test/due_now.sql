-- due_now: how many jobs of these queues and kinds run or are due, ticks of schedules included. For tests, which wait
-- until there are none.
--
--   $1 queues  $2 kinds; NULL: every kind
SELECT (SELECT count(*)
          FROM tenure.jobs
         WHERE queue = ANY ($1::text[])
           AND ($2::text[] IS NULL OR kind = ANY ($2::text[]))
           AND (status = 'processing' OR scheduled_at <= statement_timestamp()))
     + (SELECT count(*)
          FROM tenure.schedules
         WHERE queue = ANY ($1::text[])
           AND ($2::text[] IS NULL OR kind = ANY ($2::text[]))
           AND next_at <= statement_timestamp() AND paused_at IS NULL) AS jobs
