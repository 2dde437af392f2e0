-- list_audit: acts, the latest first.
--
--   $1 seconds back, or NULL  $2 queue, or NULL  $3 act, or NULL  $4 who, or NULL: the actor, or the role
--   $5 what on, or NULL: the job, the lane, the schedule or the redrive  $6 those before this one, or NULL  $7 row limit
SELECT id, at, role, address, via, actor, act, queue, subject, jobs, details::text AS details
  FROM tenure.audit
 WHERE ($1::float8 IS NULL OR at > statement_timestamp() - $1 * interval '1 second')
   -- So that a walk in the order of ids ends there.
   AND ($1 IS NULL OR id >= (SELECT min(id) FROM tenure.audit WHERE at > statement_timestamp() - $1 * interval '1 second'))
   AND ($2::text IS NULL OR queue = $2)
   AND ($3::text IS NULL OR act = $3)
   AND ($4::text IS NULL OR actor = $4 OR role = $4)
   AND ($5::text IS NULL OR subject = $5)
   AND ($6::bigint IS NULL OR id < $6)
 ORDER BY id DESC
 LIMIT $7
