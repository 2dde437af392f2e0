-- release_followers: work off the ends of jobs of groups. The caller publishes the jobs of the answer.
--
--   $1 the most ends, and the most followers
--
-- A last row without an id: there is more to do. See tenure.release_followers in migrations/0018_groups.sql.
SELECT id, queue, kind, dispatch, clear_reason, trace_context FROM tenure.release_followers($1)
