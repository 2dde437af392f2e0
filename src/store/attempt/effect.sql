-- effect: the stored result of an effect that an attempt has done.
--
--   $1 job id  $2 key
SELECT result::text AS result FROM tenure.effects WHERE job_id = $1 AND key = $2
