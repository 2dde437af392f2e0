-- release_followers: work off the ends of jobs of groups. The caller publishes the jobs of the answer.
--
--   $1 the most notes
--
-- A last row without an id: there is more to do. See migrations/functions/groups/release_followers.sql.
SELECT id, queue, kind, dispatch, clear_reason, trace_context FROM tenure.release_followers($1)
