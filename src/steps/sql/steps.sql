-- steps: what the attempts of a job have recorded.
--
--   $1 job id  $2 the name of the one to read, or NULL: all
--
-- One row an effect; `step_kind` is NULL for one of `once`. Of a sleep also the seconds that are left. A large result is left
-- for effect.sql: all of them together may be very large.
SELECT key, step_kind, CASE WHEN pg_column_size(result) <= 8192 THEN result::text END AS result,
       extract(epoch FROM wakes_at - clock_timestamp())::float8 AS left_s
  FROM tenure.effects
 WHERE job_id = $1 AND ($2::text IS NULL OR key = $2)
