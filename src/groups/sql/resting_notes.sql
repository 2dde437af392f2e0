-- resting_notes: ended jobs whose followers Postgres has refused to write of late, the oldest note first.
--
--   $1 the most
SELECT job_id FROM tenure.group_ends
 WHERE rests_until > statement_timestamp() - interval '1 minute'
 ORDER BY id LIMIT $1
