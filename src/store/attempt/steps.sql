-- steps: what the attempts of a job have recorded.
--
--   $1 job id
--
-- One row an effect; `step` is NULL for one of `once`. Of a sleep also the seconds that are left.
SELECT key, step, result::text AS result,
       extract(epoch FROM wakes_at - clock_timestamp())::float8 AS left_s
  FROM tenure.effects
 WHERE job_id = $1
