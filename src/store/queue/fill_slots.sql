-- fill_slots: give each running job of a queue a slot, and the queue as many slots as it may have.
--
--   $1 queue  $2 max_running (NULL: no limit)
--
-- Last statement of a change of max_running. The transaction has locked every slot (hold_slots.sql), so this snapshot
-- shows the jobs of all limited claims. More jobs than the limit may run: some then get slots above it, and the next
-- claims move these jobs down as slots come free.
-- Jobs of a queue without a limit hold no slot. Of these, claims that were under way when the first limit was committed
-- may have started a few jobs more than it allows.
WITH runs AS MATERIALIZED (
    SELECT j.id, j.fencing_token, row_number() OVER (ORDER BY j.id)::int AS slot
      FROM tenure.jobs j
     WHERE j.queue = $1 AND j.status = 'processing' AND $2::int IS NOT NULL
), most AS MATERIALIZED (
    SELECT greatest(coalesce($2::int, 0), (SELECT count(*)::int FROM runs)) AS slots
), gone AS (
    -- Claims would read them in vain.
    DELETE FROM tenure.queue_slots s WHERE s.queue = $1 AND s.slot > (SELECT slots FROM most)
)
INSERT INTO tenure.queue_slots AS s (queue, slot, job_id, fencing_token)
SELECT $1, n, runs.id, runs.fencing_token
  FROM generate_series(1, (SELECT slots FROM most)) AS n
  LEFT JOIN runs ON runs.slot = n
    ON CONFLICT (queue, slot) DO UPDATE
   SET job_id = excluded.job_id, fencing_token = excluded.fencing_token
