-- effect: the stored result of an effect that an attempt has done, and whether it is a step.
--
--   $1 job id  $2 key
SELECT result::text AS result, step_kind IS NOT NULL AS is_step FROM tenure.effects WHERE job_id = $1 AND key = $2
