-- due_now: the number of jobs of these queues and kinds that run or are due, due ticks of schedules included. Tests
-- wait until it is 0.
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
