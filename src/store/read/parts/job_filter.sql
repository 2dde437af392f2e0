-- job_filter: which jobs of `tenure.all_jobs j`.
--
--   $1 status or NULL  $2 queue or NULL  $3 kind or NULL  $4 worker or NULL  $5 seconds of age at least, or NULL
--   $6 seconds of age at most, or NULL  $7 text in the last error or NULL  $8 before this id or NULL
--   $9 text in the kind, the last error, the message or the payload, or NULL
--   $10 of the jobs that wait for their time, 'retrying': those that have been tried, 'scheduled': the others; 'held':
--       those that their lanes hold; or NULL
--
-- The worker of a job that waits for another attempt stands with its attempts.
-- Most texts are ASCII: `lower` of the collation "C" finds those in three fifths of the time of any other.
       ($1::text IS NULL OR status = $1)
   AND ($2::text IS NULL OR queue = $2)
   AND ($3::text IS NULL OR kind = $3)
   AND ($4::text IS NULL OR $4 = coalesce(j.worker_id, (
           SELECT e.worker_id FROM tenure.job_executions e WHERE e.job_id = j.id ORDER BY e.fencing_token DESC LIMIT 1)))
   AND ($5::float8 IS NULL OR created_at <= statement_timestamp() - $5 * interval '1 second')
   AND ($6::float8 IS NULL OR created_at >= statement_timestamp() - $6 * interval '1 second')
   AND ($7::text IS NULL OR strpos(last_error, $7) > 0)
   AND ($9::text IS NULL OR CASE WHEN octet_length($9) = length($9)
           THEN strpos(lower(concat_ws(' ', kind, last_error, message, payload) COLLATE "C"), lower($9 COLLATE "C")) > 0
           ELSE strpos(lower(concat_ws(' ', kind, last_error, message, payload)), lower($9)) > 0 END)
   AND ($10::text IS NULL OR CASE WHEN $10 = 'held' THEN scheduled_at >= '9998-01-01 00:00:00+00'
                                  ELSE scheduled_at > statement_timestamp() AND scheduled_at < '9998-01-01 00:00:00+00'
                                       AND (attempt > 0) = ($10 = 'retrying') END)
   AND
-- include read/parts/id_bounds.sql
