-- complete_edges: the statement settles the edges of the completed jobs itself, many at a time. It has said so to the trigger
-- of groups, which would note each end for a look at its edges later. See migrations/functions/groups/settle_edges.sql.
 WHERE (SELECT tenure.settle_edges(array_agg(id ORDER BY id),
                                   array_agg(output::jsonb ORDER BY id) FILTER (WHERE $4::text[] IS NOT NULL))
          FROM done WHERE group_id IS NOT NULL)
