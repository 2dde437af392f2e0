-- activity_add: adds the counts of a new row to those of the row that is there.
    ON CONFLICT (minute, queue) DO UPDATE
   SET claimed = a.claimed + excluded.claimed,
       completed = a.completed + excluded.completed,
       unkept = a.unkept + excluded.unkept,
       retried = a.retried + excluded.retried,
       snoozed = a.snoozed + excluded.snoozed,
       failed = a.failed + excluded.failed,
       cancelled = a.cancelled + excluded.cancelled,
       released = a.released + excluded.released,
       waited = (SELECT array_agg(coalesce(x, 0) + coalesce(y, 0) ORDER BY i)
                   FROM unnest(a.waited, excluded.waited) WITH ORDINALITY AS u (x, y, i)),
       ran = (SELECT array_agg(coalesce(x, 0) + coalesce(y, 0) ORDER BY i)
                FROM unnest(a.ran, excluded.ran) WITH ORDINALITY AS u (x, y, i))
