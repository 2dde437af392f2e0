-- join_edges: new jobs come before the same jobs as an older member of their group. The fence of that member's attempt
-- follows in the same transaction: until it ends, none of those that wait for it can be released.
--
--   $1 the new jobs  $2 the member
INSERT INTO tenure.job_edges (before, after, group_id, step)
SELECT u.id, e.after, e.group_id, e.step
  FROM unnest($1::uuid[]) WITH ORDINALITY AS u(id, n)
  JOIN tenure.job_edges e ON e.before = $2
 ORDER BY u.n
    ON CONFLICT (before, after) DO NOTHING
