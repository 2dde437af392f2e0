-- effect_result: store the result of the effect of this transaction.
--
--   $1 job id  $2 key  $3 result (JSON text)
UPDATE tenure.effects SET result = $3::jsonb WHERE job_id = $1 AND key = $2
