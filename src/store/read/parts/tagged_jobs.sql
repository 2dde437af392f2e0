-- tagged_jobs: the jobs `j` of all_jobs that have all of these tags. $13: the tags, without duplicates.
--
-- It begins with the jobs `t` of one tag, by id, and looks each of them up: of several tags, of the one that the fewest
-- jobs have, counted to a thousand. Rows are compared in order: or the planner could read all of a tag to count some.
-- OFFSET: or it could read the history, or all tags, as a whole.
      FROM (SELECT id AS job_id
              FROM (SELECT job_id AS id FROM tenure.job_tags
                     WHERE tag = (SELECT w.tag FROM unnest($13::text[]) AS w(tag)
                                   ORDER BY CASE WHEN cardinality($13::text[]) > 1 THEN
                                                (SELECT count(*) FROM (
                                                     SELECT FROM tenure.job_tags c
                                                      WHERE (c.tag, c.job_id) >= (w.tag, '00000000-0000-0000-0000-000000000000')
                                                        AND (c.tag, c.job_id) <= (w.tag, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
                                                      ORDER BY c.tag, c.job_id LIMIT 1000) few) END
                                   LIMIT 1)) tagged
             WHERE
-- include read/parts/id_bounds.sql
           ) t
     CROSS JOIN LATERAL (SELECT * FROM tenure.all_jobs a WHERE a.id = t.job_id OFFSET 0) j
     WHERE NOT EXISTS (
           SELECT FROM unnest($13::text[]) AS wanted(tag)
            WHERE NOT EXISTS (SELECT FROM tenure.job_tags o WHERE o.job_id = t.job_id AND o.tag = wanted.tag OFFSET 0))
