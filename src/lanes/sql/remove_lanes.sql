-- remove_lanes: take a queue's lanes away; returns whether it had any. What is held is released.
--
--   $1 queue  $2 who acts: by what, and the name
WITH removed AS MATERIALIZED (
    SELECT tenure.remove_lanes($1) AS had
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue)
    SELECT ($2::text[])[1], ($2::text[])[2], 'remove_lanes', $1
      FROM removed
     WHERE had
)
SELECT had AS removed FROM removed
