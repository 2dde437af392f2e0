-- recoveries: the latest recovery events of one job, oldest first.
--
--   $1 id  $2 row limit
SELECT at, event, path, fencing_token, owner_before, extract(epoch FROM silence)::float8 AS silence_s, reason, recovered_by
  FROM (SELECT * FROM tenure.recovery_events WHERE job_id = $1 ORDER BY id DESC LIMIT $2) e
 ORDER BY id
